"""torch.cuda.FloatTensor and its kin: classes that make tensors of one dtype on the current device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from phalanx.patches import Names

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _TensorType(type):
    """The metaclass of these classes: isinstance() is true for tensors with the dtype on any virtual GPU."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, torch.Tensor):
            return False
        return instance.is_cuda and instance.layout == torch.strided and instance.dtype == cls.dtype


def names(library: Library) -> Names:
    """Return the classes, and the function that makes one of them the default."""
    set_elsewhere = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        chosen = torch._utils._import_dotted_name(t) if isinstance(t, str) else t
        if not isinstance(chosen, _TensorType):
            set_elsewhere(t)
            return
        torch.set_default_dtype(chosen.dtype)
        torch.set_default_device("cuda")

    types = {f"torch.cuda.{name}Tensor": _tensor_type(name, dtype, library) for name, dtype in _DTYPES.items()}
    return {**types, "torch.set_default_tensor_type": set_default_tensor_type}


def _tensor_type(name: str, dtype: torch.dtype, library: Library) -> _TensorType:
    def new(cls: _TensorType, *args: Any, device: Any = None) -> torch.Tensor:
        place = torch.device("cuda", library.current_device()) if device is None else torch.device(device)
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0], dtype=dtype, device=place)
        shape = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(shape, dtype=dtype, device=place)

    # tensor.type(torch.cuda.FloatTensor) uses the full name of the class, so the name has dots in it.
    attributes = {"__new__": new, "__module__": "torch.cuda", "__qualname__": f"{name}Tensor", "dtype": dtype}
    return _TensorType(f"torch.cuda.{name}Tensor", (), attributes)

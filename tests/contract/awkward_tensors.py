"""Every kind of tensor that torch can make: how it is made of plain values, and what a group must do with it.

No pytest here: ranks import it.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
import torch.utils._python_dispatch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

RIGHT, REFUSED = "right", "refused"
_C: Any = torch._C


def numbers(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return small whole numbers, or bytes where torch has no numbers of this type."""
    count = torch.Size(shape).numel()
    small = torch.arange(count) % 5 + 1 + seed
    try:
        return small.to(dtype).reshape(shape)
    except (RuntimeError, TypeError):
        return small.repeat_interleave(dtype.itemsize).to(torch.uint8).view(dtype).reshape(shape)


@dataclass(frozen=True)
class Kind:
    """A kind of tensor.

    Attributes:
        name: In words.
        make: From plain values to such a tensor with these values.
        given: What comes of it as an input that is moved.
        filled: What comes of it as an output, or in place.
        reduced: What comes of it where it is added up, if it can be filled.
        values_of: From such a tensor to its values.
        dtype: Of the values.
        inside: Run a call in the surroundings that the tensor lives in.
        through_torch: What comes of it through torch.distributed where torch itself refuses.
    """

    name: str
    make: Callable[[Tensor], Any]
    given: str = RIGHT
    filled: str = RIGHT
    reduced: str = RIGHT
    values_of: Callable[[Tensor], Tensor] = lambda t: t.detach().clone()
    dtype: torch.dtype = torch.float32
    inside: Callable[[Tensor, Callable[[Tensor], Any]], Any] | None = None
    through_torch: str | None = None
    small_only: bool = True


def refused(name: str, make: Callable[[Tensor], Any], **more: Any) -> Kind:
    return Kind(name, make, REFUSED, REFUSED, REFUSED, **more)


def all_dtypes() -> list[torch.dtype]:
    """Return every dtype of this torch, those of later versions included."""
    return sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


_ADDED = {
    *(torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
}


def dtype_kinds() -> list[Kind]:
    kinds = []
    for dtype in all_dtypes():
        name = str(dtype).removeprefix("torch.")
        if name.startswith(("bits", "q")):
            kinds.append(refused(name, lambda t: t, dtype=dtype))
            continue
        kinds.append(Kind(
            name, lambda t: t, reduced=RIGHT if dtype in _ADDED else REFUSED, dtype=dtype, values_of=lambda t: t,
            through_torch="view_as_real" if dtype is torch.complex32 else None,
        ))  # fmt: skip
    return kinds


class PlainSubclass(Tensor):
    """A subclass that changes nothing."""


class DispatchingSubclass(Tensor):
    """A subclass with memory of its own that answers every operation itself."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return function(*args, **(kwargs or {}))


class Wrapper(Tensor):
    """A subclass without memory, as torch's own wrappers are made."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        wrapper: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        wrapper.held = inner
        return wrapper

    held: Tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{function} of a wrapper")


def _dtensor(t: Tensor) -> Tensor:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = DeviceMesh("cpu", [torch.distributed.get_rank()], _init_backend=False)
    return DTensor.from_local(t, mesh, [Replicate()], run_check=False)


def _shrunk(t: Tensor, keep: float, offset: int = 0) -> Tensor:
    holder = torch.zeros(t.numel() + offset, dtype=t.dtype)
    view = holder[offset:].view(t.shape)
    storage = holder.untyped_storage()
    storage.resize_(int(storage.nbytes() * keep))
    return view


def _in_file(t: Tensor, *, shared: bool) -> Tensor:
    size = t.numel() * t.element_size()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(max(size, 1))
        mapped = torch.from_file(file.name, shared=shared, size=t.numel(), dtype=t.dtype).view(t.shape)
    return mapped.copy_(t)


def _in_buffer(t: Tensor) -> Tensor:
    buffer = mmap.mmap(-1, max(t.numel() * t.element_size(), 1))
    return torch.frombuffer(buffer, dtype=t.dtype, count=t.numel()).view(t.shape).copy_(t)


def _frozen(t: Tensor) -> Tensor:
    array = t.numpy().copy()
    array.flags.writeable = False
    return torch.from_numpy(array)


def _mapped_read_only(t: Tensor) -> Tensor:
    """Return a tensor in a mapping that a write would end the process in."""
    with tempfile.TemporaryFile() as file:
        file.write(t.numpy().tobytes())
        file.flush()
        buffer = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return torch.frombuffer(buffer, dtype=t.dtype).view(t.shape)


def _windowed(t: Tensor) -> Tensor:
    """Return rows that overlap: each begins one element after the one before."""
    return t.flatten().clone().as_strided(t.shape, (1, 1))


def _interleaved(t: Tensor) -> Tensor:
    """Return two columns at even and odd places, which no order of the dimensions nests."""
    return torch.zeros(2 * len(t) + 2, dtype=t.dtype).as_strided(t.shape, (2, 3)).copy_(t)


def _inference(t: Tensor) -> Tensor:
    with torch.inference_mode():
        return t.clone()


def _negative(t: Tensor) -> Tensor:
    return torch._neg_view((-t).contiguous())


def _imaginary(t: Tensor) -> Tensor:
    return torch.complex(torch.full_like(t, 9), -t).conj().imag


def _in_vmap(t: Tensor, call: Callable[[Tensor], Any]) -> Any:
    torch.func.vmap(lambda x: (call(x), x)[1])(t.unsqueeze(0))


def _in_grad(t: Tensor, call: Callable[[Tensor], Any]) -> Any:
    torch.func.grad(lambda x: (call(x), x.sum())[1])(t)


def _in_functionalize(t: Tensor, call: Callable[[Tensor], Any]) -> Any:
    torch.func.functionalize(lambda x: (call(x), x)[1])(t)


def _escaped(t: Tensor) -> Tensor:
    kept: dict[int, Tensor] = {}
    torch.func.vmap(lambda x: kept.setdefault(0, x))(t.unsqueeze(0))
    return kept[0]


def _resolved(t: Tensor) -> Tensor:
    return t.detach().resolve_neg().resolve_conj().clone()


def _awaited(t: Tensor) -> Tensor:
    return t.trigger_wait().clone()  # type: ignore[attr-defined, no-any-return]


def layout_kinds() -> list[Kind]:
    """Kinds whose way through the engine depends on the size."""
    kinds = [
        Kind("transposed", lambda t: t.t().contiguous().t()),
        Kind("every second", lambda t: torch.stack([t, t + 90], -1).flatten(-2)[..., ::2]),
        Kind("beginning inside", lambda t: torch.cat([torch.zeros(3, dtype=t.dtype), t.flatten()])[3:].view(t.shape)),
        Kind("rows given twice", lambda t: t[:1].expand(t.shape), filled=REFUSED, reduced=REFUSED),
        Kind("rows that overlap", _windowed, filled=REFUSED, reduced=REFUSED),
        Kind("strides that interleave", _interleaved),
        Kind("lazy negative", _negative, values_of=_resolved),
        Kind("lazy negative, transposed", lambda t: _negative(t.t()).t(), values_of=_resolved),
        Kind("imaginary part of a lazy conjugate", _imaginary, values_of=_resolved),
        Kind("lazy conjugate", lambda t: t.conj().resolve_conj().conj(), values_of=_resolved, dtype=torch.complex64,
             through_torch="view_as_real"),
        Kind("lazy negative of integers", lambda t: torch._neg_view(-t), values_of=_resolved, dtype=torch.int32),
        Kind("lazy negative of halves", _negative, values_of=_resolved, dtype=torch.bfloat16),
        Kind("wants gradients", lambda t: t.clone().requires_grad_()),
        Kind("made for inference", _inference, values_of=_inference),
        Kind("mapped from a file, shared", lambda t: _in_file(t, shared=True)),
        Kind("mapped from a file, private", lambda t: _in_file(t, shared=False)),
        Kind("anonymous mapping", _in_buffer),
        Kind("of NumPy", lambda t: torch.from_numpy(t.numpy().copy())),
        Kind("read-only of NumPy", _frozen),
        Kind("mapped read-only", _mapped_read_only, filled=REFUSED, reduced=REFUSED),
        Kind("shared by torch", lambda t: t.clone().share_memory_()),
        Kind("lazy clone", lambda t: torch._lazy_clone(t.clone())),
        Kind("result of a functional collective", lambda t: functional.AsyncCollectiveTensor(t.clone()),
             values_of=_awaited),
    ]  # fmt: skip
    return [Kind(**{**vars(kind), "small_only": False}) for kind in kinds]


def other_kinds() -> list[Kind]:
    """Kinds that are asked for once, small."""
    return [
        Kind("parameter", torch.nn.Parameter),
        Kind("computed with gradients", lambda t: t.clone().requires_grad_() * 1),
        Kind("buffer", torch.nn.Buffer),
        Kind("plain subclass", lambda t: t.as_subclass(PlainSubclass), values_of=lambda t: t.as_subclass(Tensor)),
        refused("dispatching subclass", lambda t: t.clone().as_subclass(DispatchingSubclass)),
        refused("wrapper subclass", Wrapper),
        refused("TwoTensor", lambda t: TwoTensor(t.clone(), t.clone())),
        refused("FakeTensor", lambda t: FakeTensorMode().from_tensor(t)),
        refused("DTensor", _dtensor),
        refused("masked tensor", lambda t: torch.masked.masked_tensor(t.clone(), torch.ones_like(t, dtype=torch.bool))),
        refused("functional tensor", torch._to_functional_tensor),
        refused("inside vmap", lambda t: t, inside=_in_vmap),
        refused("inside grad", lambda t: t, inside=_in_grad),
        refused("inside functionalize", lambda t: t, inside=_in_functionalize),
        refused("escaped from vmap", _escaped),
        refused("meta", lambda t: t.to("meta")),
        refused("tensor of zeros without memory", lambda t: torch._efficientzerotensor(t.shape)),
        refused("sparse CSR", lambda t: t.to_sparse_csr()),
        refused("sparse CSC", lambda t: t.to_sparse_csc()),
        refused("sparse BSR", lambda t: t.to_sparse_bsr((1, 1))),
        refused("sparse BSC", lambda t: t.to_sparse_bsc((1, 1))),
        refused("sparse COO", lambda t: t.to_sparse(), through_torch="all_reduce"),
        refused("mkldnn", lambda t: t.to_mkldnn()),
        refused("nested", lambda t: torch.nested.nested_tensor(list(t.unbind()))),
        refused("nested, jagged", lambda t: torch.nested.nested_tensor(list(t.unbind()), layout=torch.jagged)),
        refused("quantized", lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.quint8)),
        refused("quantized per channel", lambda t: torch.quantize_per_channel(
            t, torch.ones(t.shape[0]), torch.zeros(t.shape[0]), 0, torch.qint8)),
        refused("quantized to 4 bits", lambda t: torch.quantize_per_channel(
            t, torch.ones(t.shape[0]), torch.zeros(t.shape[0]), 0, torch.quint4x2)),
        refused("more elements than can be counted in bytes", lambda t: t[:1, :1].expand(2**60, 4)),
        refused("more elements than the machine has memory", lambda t: t[:1, :1].expand(2**45, 4)),
        refused("storage resized to 0", lambda t: _shrunk(t, 0)),
        refused("storage resized to half", lambda t: _shrunk(t, 0.5)),
        refused("view of a storage resized to 0", lambda t: _shrunk(t, 0, offset=4096)),
        refused("not a tensor", lambda t: t.numpy()),
    ]  # fmt: skip

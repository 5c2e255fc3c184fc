"""Check tensors that the engine does not recognise as plain memory, and say why one is refused.

Every tensor enters the engine through `view_tensor` of native/python. The engine recognises plain tensors by their
dispatch keys, which it reads directly from torch's memory. It asks this module about all others.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phalanx import engine

_C: Any = torch._C
_CONJUGATE, _NEGATIVE = 1, 2  # the bits of Lazy in native/core/strided.hpp
_ADVICE = {
    "DTensor": "pass tensor.to_local()",
    "FakeTensor": "it has no data; make it outside the fake mode",
    "NestedTensor": "pass tensor.values()",
}
_log = logging.getLogger("phalanx")


@functools.cache  # once per process; a forked child inherits it
def open_gate() -> bool:
    """Set up the check in the engine; return whether it recognises plain tensors by itself."""
    is_learned = engine.open_gate(judge, torch.int8, torch.uint8, _samples())
    if not is_learned:
        _log.warning("phalanx does not know the tensors of torch %s: small operations are slower", torch.__version__)
    return is_learned


def _samples() -> list[tuple[Tensor, int, int, int, bool]]:
    """Return plain tensors and views of several kinds and the facts about each; the first one is ordinary."""
    with torch.inference_mode(False):
        plain = [torch.empty(size, device="cpu", dtype=torch.uint8) for size in (72, 1001, 40_000)]
        foreign = torch.frombuffer(bytearray(333), dtype=torch.uint8)
        views = [plain[1][500:], torch._neg_view(torch.empty(55, device="cpu"))]
    with torch.inference_mode():
        views.append(torch.empty(17, device="cpu"))
    samples = []
    for tensor in (*plain, foreign, *views):
        keys, storage = _C._dispatch_keys(tensor).raw_repr(), tensor.untyped_storage()
        samples.append((tensor, keys, storage.data_ptr(), storage.nbytes(), tensor is not foreign))
    return samples


def judge(tensor: Tensor) -> int | str | Tensor:
    """Return 0 for plain memory, the bits of a lazy view, the tensor that has the data, or why it is refused."""
    functional = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None and isinstance(tensor, functional.AsyncCollectiveTensor):
        data: Tensor = tensor.trigger_wait()
        return data
    with _C.DisableTorchFunctionSubclass():
        for is_of_kind, reason in _REFUSED:
            if is_of_kind(tensor):
                name = type(tensor).__name__
                advice = _ADVICE.get(name, "pass the plain tensors that it holds")
                return reason.format(name=name, advice=advice, tensor=tensor)
        return _reason_against_storage(tensor) or _lazy_bits(tensor)


def tensor_with_memory(tensor: Tensor) -> Tensor | None:
    """Return the tensor whose memory the engine uses for this one; None if the engine refuses it."""
    judged = judge(tensor)
    while isinstance(judged, Tensor):
        tensor, judged = judged, judge(judged)
    return None if isinstance(judged, str) else tensor


def _is_transformed(tensor: Tensor) -> bool:
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor)) and not torch._is_functional_tensor(tensor)


def _is_functional(tensor: Tensor) -> bool:
    return torch._is_functional_tensor(tensor) or type(tensor).__name__ == "FunctionalTensor"


# The first match counts. The later checks work only on tensors that no earlier one matches.
_REFUSED: tuple[tuple[Callable[[Tensor], bool], str], ...] = (
    (_is_transformed, "is inside vmap, grad or another transform of torch.func and has no memory; call it outside"),
    (_is_functional, "is a functional tensor, which torch makes while it traces, and has no memory of its own"),
    (
        lambda tensor: bool(_C._dispatch_keys(tensor).has(_C.DispatchKey.Python)),
        "is a {name}, a tensor subclass whose data is elsewhere; {advice}",
    ),
    (lambda tensor: tensor.is_nested, "is a nested tensor; pass tensor.values()"),
    (lambda tensor: tensor.layout is not torch.strided, "has the layout {tensor.layout}; pass tensor.to_dense()"),
    (lambda tensor: tensor.is_quantized, "is quantized ({tensor.dtype}); pass tensor.int_repr()"),
    (lambda tensor: tensor.device.type == "meta", "is on the meta device and has no data"),
    (lambda tensor: tensor._is_zerotensor(), "is a lazy tensor of zeros without memory; pass tensor.clone()"),
)


def _reason_against_storage(tensor: Tensor) -> str:
    if tensor.numel() == 0:
        return ""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    needed = (tensor.storage_offset() + reach) * tensor.element_size()
    held = tensor.untyped_storage().nbytes()
    if needed <= held:
        return ""
    return (
        f"needs {needed} bytes of memory, but its storage has {held}: it was resized or freed; "
        f"resize the storage before you pass the tensor"
    )


def _lazy_bits(tensor: Tensor) -> int:
    return _CONJUGATE * tensor.is_conj() + _NEGATIVE * tensor.is_neg()

"""Storages made and resized by hand, and sent to other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.refusals import refusal

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library

_not_shared = refusal(
    "sending a CUDA tensor to another process (torch.multiprocessing)",
    "its memory is known to its own process only",
    "send tensor.cpu() and call .cuda() where it arrives, or use torch.distributed",
)


def names(library: Library) -> Names:
    """Return the methods of storages that do not work for CUDA devices in a torch without CUDA."""
    new_elsewhere = torch.UntypedStorage.__new__
    resize_elsewhere: Any = torch.UntypedStorage.resize_

    def new(cls: type, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return new_elsewhere(cls, *args, **options, **({} if device is None else {"device": device}))
        if args and not isinstance(args[0], int):
            return _filled(args[0], torch.device(device))
        return torch.empty(args[0] if args else 0, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            resize_elsewhere(self, size)
        else:
            library.resize_storage(self._cdata, size)
        return self

    return {
        "torch.UntypedStorage.__new__": staticmethod(new),
        "torch.UntypedStorage.resize_": resize_,
        "torch.UntypedStorage._share_cuda_": _not_shared,
        "torch.UntypedStorage._new_shared_cuda": staticmethod(_not_shared),
        "torch.UntypedStorage._release_ipc_counter_cuda": staticmethod(_not_shared),
    }


def _filled(values: Any, device: torch.device) -> torch.UntypedStorage:
    return torch.tensor(list(values), dtype=torch.uint8, device=device).untyped_storage()

"""Install a stand-in in torch, and remove it again."""

from __future__ import annotations

import ctypes
import functools
import threading
import zlib
from types import TracebackType
from typing import Any, Literal

import torch
import torch.cuda.nccl
import torch.distributed.constants

from phalanx.errors import UsageError
from phalanx.groups import stream_order
from phalanx.patches import Patches
from phalanx.real_gpus.discovery import has_gpus
from phalanx.stand_in import group_creation, nccl_options
from phalanx.stand_in.comm_hooks import allow_bfloat16
from phalanx.stand_in.dist2 import replace_factory
from phalanx.stand_in.gloo import GlooStandIn
from phalanx.stand_in.mpi import MpiStandIn
from phalanx.stand_in.nccl import NcclStandIn
from phalanx.torch_backend import versions
from phalanx.torch_backend.cuda_order import serve_cuda

BackendName = Literal["nccl", "gloo", "mpi"]
_CLASSES: dict[str, Any] = {"nccl": NcclStandIn, "gloo": GlooStandIn, "mpi": MpiStandIn}
_CLASS_NAMES = {"nccl": "ProcessGroupNCCL", "gloo": "ProcessGroupGloo", "mpi": "ProcessGroupMPI"}
_C10D, _NATIVE = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"
_MODULES = (_C10D, "torch.distributed", _NATIVE)
_TIMEOUTS = (
    f"{_NATIVE}._DEFAULT_PG_NCCL_TIMEOUT",
    "torch.distributed.constants.default_pg_nccl_timeout",
    f"{_C10D}.default_pg_nccl_timeout",
)
_AVAILABLE = {"nccl": "_NCCL_AVAILABLE", "gloo": "_GLOO_AVAILABLE", "mpi": "_MPI_AVAILABLE"}
_maker_patches = Patches("a stand-in is installed", undo="StandIn.undo()")
_patches = {name: Patches(f"the stand-in for {name} is installed", undo="StandIn.undo()") for name in _CLASSES}


class StandIn:
    """An installed stand-in, until undo(); also a context manager. Threads may share it.

    Attributes:
        backend: The name of the backend that phalanx replaces.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._is_installed = True
        self._lock = threading.Lock()  # guards _is_installed

    def undo(self) -> None:
        """Restore the backend, unless another caller has asked for the stand-in too.

        Groups that exist do not change. A second call does nothing.
        """
        with self._lock:
            was_installed, self._is_installed = self._is_installed, False
        if was_installed:
            try:
                _patches[self.backend].leave()
            finally:
                _maker_patches.leave()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<phalanx stands in for {self.backend}{'' if self._is_installed else ' no more'}>"


def stand_in_for(backend: BackendName) -> StandIn:
    """Let phalanx serve programs that ask torch.distributed for another backend, in this process.

    Args:
        backend: "nccl" for GPUs; "gloo" and "mpi" for the CPU and for GPUs. Ranks may share a real GPU, which NCCL
            refuses by default. On virtual GPUs, NCCL's rule of one rank per GPU applies.

    Raises:
        UsageError: There is no such stand-in, or there are neither real nor virtual GPUs for NCCL.
    """
    if backend not in _CLASSES:
        raise UsageError(f'phalanx can\'t stand in for "{backend}"; give one of {", ".join(sorted(_CLASSES))}')
    if backend == "nccl":
        _check_gpus()
    _maker_patches.enter(_install_maker)
    try:
        _patches[backend].enter(functools.partial(_install, backend))
    except BaseException:
        _maker_patches.leave()
        raise
    return StandIn(backend)


def _check_gpus() -> None:
    if stream_order.is_virtual("cuda"):
        return
    if torch.version.cuda is None or not has_gpus():
        raise UsageError(
            "phalanx stands in for NCCL on GPUs, real or virtual ones, and there are none\n"
            '  do       call phalanx.virtual_devices(8, face="cuda") first, start with phalanx run --virtual-gpus 8, '
            "or set PHALANX_VIRTUAL_GPUS=8"
        )
    serve_cuda()


def _install_maker() -> None:
    why = "constructors of stand-ins learn the group's name, rank, store and device"
    _maker_patches.wrap([f"{_C10D}._new_process_group_helper"], group_creation.recorded, why)


def _install(backend: str) -> None:
    patches, class_name = _patches[backend], _CLASS_NAMES[backend]
    for module in _MODULES:
        patches.replace(f"{module}.{class_name}", _CLASSES[backend], "the backend's class is phalanx's")
    patches.add_item(f"{_C10D}.__all__", class_name, "a torch built without the backend does not export its class")
    patches.replace(f"{_C10D}.{_AVAILABLE[backend]}", True, "torch may be built without the backend")
    replace_factory(patches, backend)
    if backend == "nccl":
        _install_nccl(patches)


def _install_nccl(patches: Patches) -> None:
    for class_name in versions.NEWER_NCCL_CLASSES:
        for module in _MODULES:
            why = "newer versions of torch have other classes for NCCL"
            patches.replace(f"{module}.{class_name}", _CLASSES["nccl"], why, only_if_there=True)
    for path in _TIMEOUTS:
        patches.replace(path, nccl_options.DEFAULT_TIMEOUT, "a torch built without NCCL has no timeout for it")
    if stream_order.is_virtual("cuda"):  # with real GPUs, torch has these itself
        why = "TORCH_DISTRIBUTED_DEBUG=DETAIL shows tensors by it, and a torch without NCCL does not have it"
        patches.replace(f"{_NATIVE}._hash_tensors", _hash_tensors, why)
        why = "torch.cuda.nccl works on virtual GPUs, but a torch without NCCL returns False"
        patches.replace("torch.cuda.nccl.is_available", lambda tensors: all(t.is_cuda for t in tensors), why)
        allow_bfloat16(patches)


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """Return the hashes of tensors that torch shows with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    on_host = [tensor.detach().cpu().contiguous() for tensor in tensors]
    return sum(zlib.crc32(ctypes.string_at(each.data_ptr(), each.nbytes)) for each in on_host)

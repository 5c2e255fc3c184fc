"""Putting a stand-in's names in the place of another backend's, and taking them out again."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from types import TracebackType
from typing import Any, Literal

import torch
import torch.cuda.nccl
import torch.distributed.constants as torch_constants

from phalanx.devices.real_gpus import has_gpus
from phalanx.errors import UsageError
from phalanx.groups import stream_order
from phalanx.stand_in import group_creation, nccl_options
from phalanx.stand_in.comm_hooks import allow_bfloat16
from phalanx.stand_in.dist2 import replace_factory
from phalanx.stand_in.gloo import GlooStandIn
from phalanx.stand_in.mpi import MpiStandIn
from phalanx.stand_in.names import ReplacedNames
from phalanx.stand_in.nccl import NcclStandIn
from phalanx.torch_backend.cuda_order import serve_cuda
from phalanx.torch_backend.untyped import c10d, dist, native

BackendName = Literal["nccl", "gloo", "mpi"]
_CLASSES: dict[str, Any] = {"nccl": NcclStandIn, "gloo": GlooStandIn, "mpi": MpiStandIn}
# What "nccl" may mean in torch 2.15.
_NEWER_NCCL_CLASSES = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
_CLASS_NAMES = {"nccl": "ProcessGroupNCCL", "gloo": "ProcessGroupGloo", "mpi": "ProcessGroupMPI"}
_AVAILABLE = {"nccl": "_NCCL_AVAILABLE", "gloo": "_GLOO_AVAILABLE", "mpi": "_MPI_AVAILABLE"}


class StandIn:
    """A stand-in that is installed, until undo(); also a context manager. Threads may share it.

    Attributes:
        backend: Whose name phalanx goes by.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._is_installed = True

    def undo(self) -> None:
        """Let the backend's name mean what it meant before, unless somebody else has asked for the stand-in too.

        Groups that were made meanwhile stay what they are. Calling it again does nothing.
        """
        if self._is_installed:
            self._is_installed = False
            _installation.leave(self.backend)

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<phalanx stands in for {self.backend}{'' if self._is_installed else ' no more'}>"


def stand_in_for(backend: BackendName) -> StandIn:
    """Have phalanx serve whatever asks torch.distributed for another backend, in this process.

    Args:
        backend: "nccl" for GPUs; "gloo" and "mpi" for the CPU and for GPUs. Ranks may share a real GPU, which is what
            NCCL refuses; on virtual ones, which cost nothing, its rule of one rank per GPU is kept.

    Raises:
        UsageError: There is no such stand-in, or there are no GPUs for NCCL, neither real nor virtual ones.
    """
    if backend not in _CLASSES:
        raise UsageError(f'phalanx can\'t stand in for "{backend}"; give one of {", ".join(sorted(_CLASSES))}')
    if backend == "nccl":
        _check_gpus()
    _installation.enter(backend)
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


class _Installation:
    """What is installed in this process, and how often it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the rest
        self._num_users: Counter[str] = Counter()
        self._names: dict[str, ReplacedNames] = {}
        self._maker = ReplacedNames()

    def enter(self, backend: str) -> None:
        with self._lock:
            if not self._names:
                maker = group_creation.telling(c10d._new_process_group_helper)
                self._maker.attribute(c10d, "_new_process_group_helper", maker)
            self._num_users[backend] += 1
            if self._num_users[backend] == 1:
                self._names[backend] = _install(backend)

    def leave(self, backend: str) -> None:
        with self._lock:
            self._num_users[backend] -= 1
            if self._num_users[backend] == 0:
                self._names.pop(backend).put_back()
            if not self._names:
                self._maker.put_back()


_installation = _Installation()


def _install(backend: str) -> ReplacedNames:
    names = ReplacedNames()
    stand_in, class_name = _CLASSES[backend], _CLASS_NAMES[backend]
    for module in (c10d, dist, native):
        names.attribute(module, class_name, stand_in)
    names.member(c10d.__all__, class_name)
    names.attribute(c10d, _AVAILABLE[backend], True)
    replace_factory(names, backend)
    if backend == "nccl":
        _install_nccl(names)
    return names


def _install_nccl(names: ReplacedNames) -> None:
    for class_name in _NEWER_NCCL_CLASSES:
        for module in (c10d, dist, native):
            if hasattr(module, class_name):
                names.attribute(module, class_name, _CLASSES["nccl"])
    names.attribute(native, "_DEFAULT_PG_NCCL_TIMEOUT", nccl_options.DEFAULT_TIMEOUT)
    for module in (torch_constants, c10d):
        names.attribute(module, "default_pg_nccl_timeout", nccl_options.DEFAULT_TIMEOUT)
    if stream_order.is_virtual("cuda"):  # beside real ones, torch has these itself
        names.attribute(native, "_hash_tensors", _hash_tensors)
        names.attribute(torch.cuda.nccl, "is_available", lambda tensors: all(t.is_cuda for t in tensors))
        allow_bfloat16(names)


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """What torch shows of tensors with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    return sum(zlib.crc32(t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()) for t in tensors)

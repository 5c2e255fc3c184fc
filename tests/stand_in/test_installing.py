"""A stand-in is asked for, can be taken back, and is refused where it would get in the way."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.cuda.nccl
import torch.distributed.constants as torch_constants

import phalanx
from phalanx.errors import UsageError
from phalanx.real_gpus import discovery
from phalanx.stand_in import install
from phalanx.stand_in.install import StandIn
from phalanx.torch_backend.untyped import c10d, dist, native
from tests.virtual_gpus.in_child import in_child, on_virtual_devices, run_script


def _names() -> dict[str, Any]:
    """All that a stand-in for NCCL touches."""
    from torch.distributed import _dist2

    holders: list[Any] = [c10d, dist, native]
    return {
        "classes": [getattr(module, "ProcessGroupNCCL", None) for module in holders],
        "exported": list(c10d.__all__),
        "available": dist.is_nccl_available(),
        "timeouts": [
            getattr(native, "_DEFAULT_PG_NCCL_TIMEOUT", None),
            c10d.default_pg_nccl_timeout,
            torch_constants.default_pg_nccl_timeout,
        ],
        "available for tensors": torch.cuda.nccl.is_available,
        "hooks": torch.nn.parallel.DistributedDataParallel._check_comm_hook,
        "hash": getattr(native, "_hash_tensors", None),
        "maker": c10d._new_process_group_helper,
        "factory": _dist2._BACKENDS["nccl"],
    }


@on_virtual_devices(1, face="cuda")
def test_undo_puts_every_name_back() -> None:
    before = _names()
    stand_in = phalanx.stand_in_for("nccl")
    assert dist.is_nccl_available()
    assert c10d.default_pg_nccl_timeout.total_seconds() == 600
    stand_in.undo()
    assert _names() == before


@on_virtual_devices(1, face="cuda")
def test_the_last_to_undo_puts_the_names_back() -> None:
    before = _names()
    first, second = phalanx.stand_in_for("nccl"), phalanx.stand_in_for("nccl")
    first.undo()
    first.undo()  # counts once
    assert dist.is_nccl_available()
    second.undo()
    assert _names() == before


@on_virtual_devices(1, face="cuda")
def test_several_backends_come_and_go_in_any_order() -> None:
    before, real_gloo = _names(), dist.ProcessGroupGloo
    nccl, gloo = phalanx.stand_in_for("nccl"), phalanx.stand_in_for("gloo")
    nccl.undo()
    assert dist.ProcessGroupGloo is not real_gloo
    gloo.undo()
    assert dist.ProcessGroupGloo is real_gloo
    assert _names() == before


@in_child
def test_a_with_block_ends_it() -> None:
    with phalanx.stand_in_for("mpi") as stand_in:
        assert dist.is_mpi_available()
        assert repr(stand_in) == "<phalanx stands in for mpi>"
    assert not dist.is_mpi_available()
    assert repr(stand_in) == "<phalanx stands in for mpi no more>"


def test_nccl_needs_gpus() -> None:
    with pytest.raises(UsageError, match="real or virtual ones, and there are none") as raised:
        phalanx.stand_in_for("nccl")
    assert 'phalanx.virtual_devices(8, face="cuda")' in str(raised.value)
    assert not dist.is_nccl_available()


@on_virtual_devices(1)
def test_nccl_needs_the_cuda_face() -> None:
    with pytest.raises(UsageError, match="and there are none"):
        phalanx.stand_in_for("nccl")


@in_child
@pytest.mark.parametrize("visible", ["0,1", "MIG-6f1d1a9e"])
def test_nccl_can_be_stood_in_for_beside_real_gpus_which_are_counted_without_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    def initialise_cuda() -> int:
        raise AssertionError("no fork of this process could use a GPU any more")

    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(discovery, "DEVICE_FOLDER", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", initialise_cuda, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with phalanx.stand_in_for("nccl"):
        assert dist.is_nccl_available()


@in_child
def test_gpus_that_are_hidden_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="and there are none"):
        phalanx.stand_in_for("nccl")


def test_only_three_backends_can_be_stood_in_for() -> None:
    with pytest.raises(UsageError, match='"ucc"; give one of gloo, mpi, nccl'):
        phalanx.stand_in_for("ucc")  # type: ignore[arg-type]


@on_virtual_devices(1, face="cuda")
def test_the_version_is_the_same_with_and_without() -> None:
    version = torch.cuda.nccl.version()
    with phalanx.stand_in_for("nccl"):
        assert torch.cuda.nccl.version() == version == dist.ProcessGroupNCCL.get_build_nccl_version()


@pytest.mark.slow
def test_the_variable_that_cannot_be_served_is_named_last() -> None:
    ended = run_script("import torch", PHALANX_STAND_IN="nccl")
    *_, told, advice = ended.stderr.splitlines()
    assert told.endswith(
        "PHALANX_STAND_IN=nccl: phalanx stands in for NCCL on GPUs, real or virtual ones, and there are none"
    )
    assert "or set PHALANX_VIRTUAL_GPUS=8" in advice
    assert ended.returncode == 1


def test_a_stand_in_that_can_not_be_installed_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import _dist2

    before = (c10d.ProcessGroupGloo, c10d._GLOO_AVAILABLE, c10d._new_process_group_helper)
    monkeypatch.setattr(_dist2, "_BACKENDS", None)
    with pytest.raises(AttributeError):
        phalanx.stand_in_for("gloo")
    assert (c10d.ProcessGroupGloo, c10d._GLOO_AVAILABLE, c10d._new_process_group_helper) == before
    monkeypatch.undo()
    with phalanx.stand_in_for("gloo"):
        assert c10d.ProcessGroupGloo is not before[0]
    assert (c10d.ProcessGroupGloo, c10d._GLOO_AVAILABLE, c10d._new_process_group_helper) == before


def test_a_torch_whose_newer_api_can_not_be_imported_has_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed._dist2", None)
    before = c10d.ProcessGroupGloo
    with phalanx.stand_in_for("gloo"):
        assert c10d.ProcessGroupGloo is not before
    assert c10d.ProcessGroupGloo is before


class _ReadByBothThreads(StandIn):
    """Gives a second thread time to read whether it is installed before the first one goes on."""

    readers = threading.Barrier(2)

    @property
    def _is_installed(self) -> bool:
        is_installed = bool(self.__dict__["is_installed"])
        with contextlib.suppress(threading.BrokenBarrierError):
            self.readers.wait(0.2)  # with a lock, the second one can't come
        return is_installed

    @_is_installed.setter
    def _is_installed(self, is_installed: bool) -> None:
        self.__dict__["is_installed"] = is_installed


def test_several_threads_may_undo_one_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before = c10d.ProcessGroupGloo
    with phalanx.stand_in_for("gloo"):
        monkeypatch.setattr(install, "StandIn", _ReadByBothThreads)
        shared = phalanx.stand_in_for("gloo")
        threads = [threading.Thread(target=shared.undo) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert c10d.ProcessGroupGloo is not before  # the outer one is still installed
    assert c10d.ProcessGroupGloo is before

"""Ranks whose virtual GPUs have memory of the simulated driver: what they call "cuda" takes the way of real GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx import Group
from tests.cuda_simulator.build import build_simulator, has_compiler, user_folder
from tests.run_ranks import Kind, run_ranks

needs_simulator = pytest.mark.skipif(
    not has_compiler(), reason="there is no g++, which builds the simulated CUDA driver"
)


class SimulatedRanks:
    """Runs functions on ranks with simulated GPUs; `switches` are variables of the simulator, such as NO_IPC=1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library = str(build_simulator(user_folder()))
        self._monkeypatch = monkeypatch

    def run(
        self, kind: Kind, ranks: int, function: Callable[..., Any], *args: Any, gpus: int = 1, **switches: object
    ) -> list[Any]:
        """Call function(group, *args) on every rank and return the results."""
        self._monkeypatch.setenv("PHALANX_CUDA_DRIVER", self._library)
        self._monkeypatch.setenv("PHALANX_NVRTC", self._library)
        self._monkeypatch.setenv("SIMULATED_GPUS", str(gpus))
        for name, value in switches.items():
            self._monkeypatch.setenv(f"SIMULATED_{name}", str(value))
        if kind == "process":
            return run_ranks("process", ranks, _in_process, gpus, function, args)
        # Virtual GPUs are there for good: threads have a process of their own for them.
        return run_ranks("process", 1, _in_threads, ranks, gpus, function, args)[0]  # type: ignore[no-any-return]

    def check_that_survivors_name(self, victim: int, function: Callable[..., Any], folder: Path) -> None:
        """Call function(group, victim, folder) on three ranks: one dies, the others leave their error's text there."""
        with pytest.raises(phalanx.PhalanxError, match=f"rank {victim}"):
            self.run("process", 3, function, victim, str(folder))
        for survivor in {0, 1, 2} - {victim}:
            assert f"rank {victim}" in (folder / str(survivor)).read_text()


def _in_process(gpus: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    phalanx.virtual_devices(gpus, face="cuda")
    return function(phalanx.connect(), *args)


def _in_threads(ranks: int, gpus: int, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    phalanx.virtual_devices(gpus, face="cuda")
    return phalanx.spawn(_in_thread, ranks=ranks, kind="thread", args=(function, args), timeout_s=60)


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return function(phalanx.connect(), *args)


def num_mappings() -> int:
    """Return how many allocations of other processes this one has open."""
    from phalanx.settings import cuda_driver

    return int(ctypes.CDLL(cuda_driver()).sim_num_mappings())


def failure_of(group: Group, call: Callable[[], object]) -> phalanx.PhalanxError:
    """Return what a call raises, on a rank, where pytest is not."""
    try:
        call()
    except phalanx.PhalanxError as error:
        return error
    raise AssertionError(f"rank {group.rank} got no error")


def stall_stream(seconds: float) -> None:
    """Give this rank's current stream something to do that takes so long."""
    from phalanx.settings import cuda_driver, set_environment

    driver, context = ctypes.CDLL(cuda_driver()), ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxPushCurrent_v2(context)
    word = ctypes.c_uint64()
    driver.cuMemAlloc_v2(ctypes.byref(word), ctypes.c_size_t(8))
    set_environment(SIMULATED_DELAY_US=str(int(seconds * 1e6)))
    driver.cuMemcpyDtoDAsync_v2(word, word, ctypes.c_size_t(8), None)
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))

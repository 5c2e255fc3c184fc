"""Tests that take more arithmetic or memory than a small machine has."""

from __future__ import annotations

from phalanx.engine import available_memory_bytes, usable_cores
from phalanx_tools.conformance.modes import Mode

# 150 steps of three 5x5 convolutions (1, 20, 32, 256 channels) over 1000 x 1000 pixels, 1.3 TFLOP each, on two ranks.
_LONG = "test_ddp_uneven_inputs"
_TERAFLOP = 195
_GIGAFLOP_PER_CORE = 80
_MOST_SECONDS = 300.0
# Rank i's input has 4 * 10 ** (i + 1) numbers, and every rank makes those of all ranks, several times over.
_LARGE = "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value"
_BYTES_PER_NUMBER = 4
_COPIES = 4


def reason_to_leave_out(mode: Mode, world_size: int, name: str) -> str | None:
    """Return why a test is not run here unless it is named, or None."""
    if not mode.has_gpus:
        return None
    if name == _LONG and _long_seconds() > _MOST_SECONDS:
        return (
            f"150 steps of a convolution model on 1000 x 1000 pixels, {_TERAFLOP} TFLOP: "
            f"at least {_long_seconds() / 60:.0f} minutes on {usable_cores()} cores; name the test to run it"
        )
    if name == _LARGE and _large_bytes(world_size) > available_memory_bytes():
        return (
            f"on {world_size} ranks it takes {_large_bytes(world_size) / 2**30:.0f} GiB of memory, "
            f"and {available_memory_bytes() / 2**30:.0f} are free; name the test to run it"
        )
    return None


def timeout_of(name: str, timeout_s: float) -> float:
    """Return how long a test may take."""
    return max(timeout_s, 4 * _long_seconds()) if name == _LONG else timeout_s


def num_threads_of(name: str, world_size: int) -> int:
    """Return how many threads torch may use in each rank: those of the long test do not always work at once."""
    return usable_cores() if name == _LONG else max(1, usable_cores() // world_size)


def _long_seconds() -> float:
    return _TERAFLOP * 1000 / _GIGAFLOP_PER_CORE / usable_cores()


def _large_bytes(world_size: int) -> float:
    return world_size * _COPIES * _BYTES_PER_NUMBER * 4 * float(10**world_size)

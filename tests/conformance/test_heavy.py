"""Tests that are too much for a small machine."""

from __future__ import annotations

from phalanx.engine import usable_cores
from phalanx_tools.conformance.heavy import num_threads_of, reason_to_leave_out, timeout_of
from phalanx_tools.conformance.modes import MODES

_LARGE = "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value"


def test_memory_that_no_machine_has_is_not_asked_for() -> None:
    reason = reason_to_leave_out(MODES["nccl"], 12, _LARGE)
    assert reason is not None
    assert "on 12 ranks it takes" in reason
    assert "name the test to run it" in reason


def test_a_test_is_run_where_it_fits() -> None:
    assert reason_to_leave_out(MODES["nccl"], 2, _LARGE) is None
    assert reason_to_leave_out(MODES["nccl"], 8, "test_barrier") is None
    assert reason_to_leave_out(MODES["gloo"], 12, _LARGE) is None  # without GPUs it skips


def test_a_long_test_has_more_time_and_all_cores() -> None:
    assert timeout_of("test_barrier", 60.0) == 60.0
    assert timeout_of("test_ddp_uneven_inputs", 10.0) > 10.0
    assert num_threads_of("test_ddp_uneven_inputs", 8) == usable_cores()
    assert num_threads_of("test_barrier", 10**6) == 1

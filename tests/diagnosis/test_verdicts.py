"""Every kind of verdict, as ranks that really got into that trouble read it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.diagnosis.processes import state_of
from tests.leftovers import wait_until
from tests.run_ranks import run_ranks

_SHORT_S = 0.3
_LONGEST_S = 20.0


def _sleep_until(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(0.01)


def _stay_until(folder: Path, num_notes: int, idle: Callable[[Callable[[], bool]], None] = _sleep_until) -> None:
    """Be late: until that many other ranks have written down what they got."""
    deadline = time.monotonic() + _LONGEST_S
    (folder / "late").touch()
    idle(lambda: len(list(folder.glob("*.verdict"))) >= num_notes or time.monotonic() > deadline)


def _caught(folder: Path, rank: int, act: Callable[[], object], *, is_late: bool = True) -> phalanx.PhalanxError:
    """Return what a call raises; with `is_late`, make it when another rank is in _stay_until()."""
    assert not is_late or wait_until((folder / "late").exists)
    with pytest.raises(phalanx.PhalanxError) as caught:
        act()
    (folder / f"{rank}.verdict").write_text(str(caught.value))
    return caught.value


@pytest.mark.slow
@pytest.mark.ranks(3, kind=["process", "thread"])
def test_a_late_rank_is_shown_with_its_last_operation_and_its_stack(group: Any, tmp_path: Path) -> None:
    group.all_reduce(torch.ones(4, 3))
    if group.rank == 2:
        _stay_until(tmp_path, 2)
        return
    error = _caught(tmp_path, group.rank, lambda: group.all_reduce(torch.ones(4), timeout_s=_SHORT_S))
    assert (error.verdict, error.culprits) == ("late", (2,))
    text = str(error)
    assert "rank 2 did not come" in text.splitlines()[0]
    assert "left all_reduce #1 sum float32 (4, 3), diagnosis/test_verdicts.py:" in text
    assert "is now at diagnosis/test_verdicts.py:" in text
    assert " in _stay_until" in text
    assert "called from diagnosis/test_verdicts.py:" in text


def _spin(is_over: Callable[[], bool]) -> None:
    while not is_over():
        total = 0
        for number in range(200_000):
            total += number


def _hold_the_lock(is_over: Callable[[], bool]) -> None:
    while not is_over():
        ctypes.PyDLL(None).usleep(100_000)  # a C call that does not let other threads run


@pytest.mark.slow
@pytest.mark.parametrize(("idle", "name"), [(_spin, "_spin"), (_hold_the_lock, "_hold_the_lock")])
@pytest.mark.ranks(2)
def test_a_rank_that_computes_or_is_stuck_in_c_is_shown_where_it_is(
    group: Any, tmp_path: Path, idle: Callable[[Callable[[], bool]], None], name: str
) -> None:
    if group.rank == 1:
        _stay_until(tmp_path, 1, idle)
        return
    error = _caught(tmp_path, group.rank, lambda: group.barrier(timeout_s=_SHORT_S))
    assert f" in {name}" in str(error)


@pytest.mark.slow
def test_a_stopped_rank_is_said_to_be_stopped() -> None:
    def body() -> str:
        group = phalanx.connect(timeout_s=50)
        pids: list[int] = group.all_gather_object(os.getpid())
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return ""
        assert wait_until(lambda: state_of(pids[1]) == "T")
        try:
            group.barrier(timeout_s=0.5)
        except phalanx.OperationTimeoutError as error:
            return f"{error.verdict}|{error}"
        finally:
            os.kill(pids[1], signal.SIGCONT)
        return ""

    verdict, _, text = run_ranks("process", 2, body)[0].partition("|")
    assert verdict == "stopped"
    assert "is stopped by a signal; kill -CONT" in text


@pytest.mark.slow
@pytest.mark.ranks(2, kind=["process", "thread"])
def test_two_groups_in_different_order_are_a_cycle(group: Any, tmp_path: Path) -> None:
    first, second = group.split([0, 1], name="first"), group.split([0, 1], name="second")
    mine, other = (first, second) if group.rank == 0 else (second, first)
    error = _caught(tmp_path, group.rank, lambda: mine.all_reduce(torch.ones(2), timeout_s=1.0), is_late=False)
    _stay_until(tmp_path, 2)
    assert error.verdict == "deadlock"
    assert error.culprits == (1 - group.rank,)
    text = str(error)
    assert "rank 0 waits for rank 1 in all_reduce #1, diagnosis/test_verdicts.py:" in text
    assert 'group "first"' in text
    assert "rank 1 waits for rank 0 in all_reduce #1, diagnosis/test_verdicts.py:" in text
    assert 'group "second"' in text
    assert "make these calls in the same order on every rank" in text
    assert not other.is_closed


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("numel", [4, 1 << 20])
def test_a_receive_without_a_send_names_the_one_that_should_have_sent(group: Any, tmp_path: Path, numel: int) -> None:
    if group.rank == 0:
        _stay_until(tmp_path, 1)
        return
    error = _caught(tmp_path, 1, lambda: group.recv(torch.empty(numel), 0, tag=3, timeout_s=_SHORT_S))
    assert (error.verdict, error.culprits) == ("no sender", (0,))
    assert "rank 0 has not sent it" in str(error).splitlines()[0]
    assert "tag 3" in str(error)
    assert " in _stay_until" in str(error)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_send_without_a_receive_names_the_one_that_should_have_received(group: Any, tmp_path: Path) -> None:
    if group.rank == 1:
        _stay_until(tmp_path, 1)
        return
    error = _caught(tmp_path, 0, lambda: group.send(torch.ones(1 << 20), 1, timeout_s=_SHORT_S))
    assert (error.verdict, error.culprits) == ("no receiver", (1,))
    assert "rank 1 has not received it" in str(error).splitlines()[0]


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_tags_that_do_not_match_are_a_cycle(group: Any, tmp_path: Path) -> None:
    def act() -> object:
        if group.rank == 0:
            return group.send(torch.ones(1 << 20), 1, tag=5, timeout_s=1.0)
        return group.recv(torch.ones(1 << 20), 0, tag=7, timeout_s=5.0)

    error = _caught(tmp_path, group.rank, act, is_late=False)
    _stay_until(tmp_path, 2)
    assert error.culprits == (1 - group.rank,)
    if group.rank == 0:
        assert error.verdict == "deadlock"
        assert "recv from rank 0 tag 7" in str(error)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_rank_that_gave_up_a_receive_and_computes_is_no_deadlock(group: Any, tmp_path: Path) -> None:
    with pytest.raises(phalanx.OperationTimeoutError):
        group.recv(torch.empty(3), 1 - group.rank, timeout_s=0.2 if group.rank == 0 else 1.5)
    if group.rank == 0:
        _stay_until(tmp_path, 1)
        return
    error = _caught(tmp_path, 1, lambda: group.recv(torch.empty(3), 0, timeout_s=0.3))
    assert (error.verdict, error.culprits) == ("no sender", (0,))
    assert " in _stay_until" in str(error)


@pytest.mark.slow
@pytest.mark.ranks(3)
def test_a_sub_group_that_only_some_make_names_the_others(group: Any, tmp_path: Path) -> None:
    if group.rank == 2:
        _stay_until(tmp_path, 2)
        return
    error = _caught(tmp_path, group.rank, lambda: group.split([0, 1, 2], timeout_s=_SHORT_S))
    assert isinstance(error, phalanx.OperationTimeoutError)
    assert (error.verdict, error.culprits) == ("not joined", (2,))
    assert "rank 2 did not come" in str(error).splitlines()[0]
    assert " in _stay_until" in str(error)


@pytest.mark.ranks(2, kind=["process", "thread"])
def test_a_rank_that_left_is_shown_with_its_last_operation(group: Any, tmp_path: Path) -> None:
    group.broadcast(torch.ones(3), root=1)
    if group.rank == 1:
        group.close()
        return
    error = _caught(tmp_path, 0, lambda: group.barrier(timeout_s=_LONGEST_S), is_late=False)
    assert (type(error), error.verdict, error.culprits) == (phalanx.PeerLeftError, "left", (1,))
    assert "left broadcast #1 root 1 float32 (3,), diagnosis/test_verdicts.py:" in str(error)


@pytest.mark.slow
def test_a_rank_that_never_connects_is_named_by_those_that_do(tmp_path: Path) -> None:
    def body() -> str:
        from phalanx.launch.context import current_context

        context = current_context()
        assert context is not None
        if context.rank == 1:
            assert wait_until(told.exists)
            return ""
        group = phalanx.connect()
        try:
            group.barrier(timeout_s=1.0)
        except phalanx.OperationTimeoutError as error:
            return f"{error.verdict}|{error}"
        finally:
            told.touch()
        return ""

    told = tmp_path / "told"
    verdict, _, text = run_ranks("process", 2, body)[0].partition("|")
    assert verdict == "not joined"
    assert "rank 1" in text.splitlines()[0]
    assert "has not joined the group" in text


@pytest.mark.ranks(3, kind=["process", "thread"])
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"shape": (5,)}, "different shape"),
        ({"dtype": torch.float64}, "different dtype"),
        ({"op": phalanx.ReduceOp.MAX}, "different reduce operation"),
    ],
)
def test_a_mismatch_says_what_differs(group: Any, tmp_path: Path, change: dict[str, Any], verdict: str) -> None:
    mine = change if group.rank == 1 else {}
    tensor = torch.ones(mine.get("shape", (4,)), dtype=mine.get("dtype", torch.float32))
    op = mine.get("op", phalanx.ReduceOp.SUM)
    error = _caught(tmp_path, group.rank, lambda: group.all_reduce(tensor, op), is_late=False)
    assert (type(error), error.verdict, error.culprits) == (phalanx.MismatchError, verdict, (1,))

"""Operations under way, and whose they are where ranks are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from phalanx.errors import PhalanxError
from phalanx.groups.stream_order import StreamOrder
from phalanx.launch.context import LaunchContext, current_thread_rank, set_thread_context

_LONGEST_S = 10


class _Operation:
    """One that ends when the test says so."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.error: PhalanxError | None = None

    def done(self) -> bool:
        return self.end.is_set()

    def finish(self) -> None:
        assert self.end.wait(_LONGEST_S), "nobody ended it"

    def unreported(self) -> PhalanxError | None:
        return self.error if self.done() else None

    def report(self) -> None:
        self.error = None

    def fail(self, text: str) -> None:
        self.error = PhalanxError(text)
        self.end.set()


def _as_rank(rank: int, act: Callable[[], object]) -> object:
    """Do something on a thread that is a rank, and return what comes of it."""
    answers: list[object] = []

    def run() -> None:
        set_thread_context(_RANKS[rank])
        answers.append(act())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(_LONGEST_S)
    assert answers, "it failed, or did not end"
    return answers[0]


_RANKS = [LaunchContext(rank, 2, -1, is_thread=True, meeting="") for rank in range(2)]


@pytest.fixture
def counted() -> list[int]:
    """The changes of the number of operations under way."""
    return []


@pytest.fixture
def pending(counted: list[int]) -> StreamOrder:
    """What is under way."""
    return StreamOrder(counted.append)


def _start(pending: StreamOrder, rank: int) -> _Operation:
    operation = _Operation()
    _as_rank(rank, lambda: pending.started(operation, owner=current_thread_rank()))
    return operation


def test_a_rank_waits_for_its_own_operations_alone(pending: StreamOrder, counted: list[int]) -> None:
    own, others = _start(pending, 0), _start(pending, 1)
    own.end.set()
    _as_rank(0, pending.finish_pending)
    assert not others.done()
    assert sum(counted) == 1
    others.end.set()
    _as_rank(1, pending.finish_pending)
    assert sum(counted) == 0


def test_whoever_is_no_rank_waits_for_all(pending: StreamOrder, counted: list[int]) -> None:
    for rank in range(2):
        _start(pending, rank).end.set()
    pending.finish_pending()
    assert sum(counted) == 0


def test_a_failure_is_reported_to_the_rank_whose_it_is(pending: StreamOrder) -> None:
    _start(pending, 1).fail("rank 1's own")
    pending.finish_pending()
    _as_rank(0, pending.raise_failure)
    _as_rank(0, lambda: pending.raise_failure(is_last=True))
    assert _as_rank(0, pending.take_failure) is None
    assert str(_as_rank(1, pending.take_failure)) == "rank 1's own"
    assert _as_rank(1, pending.take_failure) is None


def test_a_failure_that_nobody_waited_for_is_the_ranks_own_too(pending: StreamOrder) -> None:
    _start(pending, 1).fail("rank 1's own")
    _as_rank(0, lambda: pending.raise_failure(is_last=True))
    with pytest.raises(PhalanxError, match="rank 1's own"):
        pending.raise_failure(is_last=True)  # whoever is no rank gets all

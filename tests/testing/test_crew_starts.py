"""Ranks that can't be started: the error comes, at once, and nothing is left open."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from phalanx.errors import InternalError, RankFailedError
from phalanx.launch.connection import Connection
from phalanx.testing.crew import Crew
from phalanx.testing.crew_starts import fork_crew, start_crew, start_programs
from phalanx.testing.task_watch import Terminal
from tests import leftovers


def _serve(connection: Connection) -> None:
    raise AssertionError("no rank must come so far")


class _ZygoteWithoutRequests:
    """Stands for a zygote that can't be reached any more."""

    def start(self, request: Any, descriptors: Sequence[int]) -> None:
        raise BrokenPipeError(32, "gone")


def test_a_program_that_can_not_be_started_is_an_error_and_the_others_end() -> None:
    before = len(leftovers.open_descriptors())
    commands = iter([["sleep", "600"], ["/nonexistent/program"]])
    with pytest.raises(FileNotFoundError):
        start_programs(lambda _: next(commands), 2, cast(Terminal, None))
    assert len(leftovers.open_descriptors()) == before


def test_a_zygote_that_can_not_be_reached_is_an_error() -> None:
    before = len(leftovers.open_descriptors())
    with pytest.raises(BrokenPipeError):
        start_crew(2, _serve, cast(Any, _ZygoteWithoutRequests()), redirect=True)
    assert len(leftovers.open_descriptors()) == before


@contextmanager
def _descriptors_left(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = itertools.islice((one for one in itertools.count() if one not in used), number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_descriptors_leave_none_open() -> None:
    start = leftovers.open_descriptors()
    for number in range(3, 12):
        with _descriptors_left(number), pytest.raises(OSError, match="Too many open files"):
            start_crew(64, _serve, cast(Any, _ZygoteWithoutRequests()), redirect=True)
    assert len(leftovers.open_descriptors()) == len(start)


def _wait_for_the_end(_: int, connection: Connection) -> None:
    while connection.receive() is not None:
        pass


def _is_enough(number: int, start: Callable[[], Crew]) -> bool:
    """Start ranks with that many descriptors more than there are; tell whether they were enough."""
    before, children = leftovers.open_descriptors(), leftovers.children(os.getpid())
    try:
        with _descriptors_left(number):
            start().close()
    except (OSError, RankFailedError):
        return False
    except InternalError:  # the programs have ended
        return True
    finally:
        assert leftovers.children(os.getpid()) == children
        assert len(leftovers.open_descriptors()) == len(before)
    return True


def test_too_few_descriptors_leave_no_forked_rank() -> None:
    def start() -> Crew:
        return fork_crew(_wait_for_the_end, 2, redirect=True)

    assert next(number for number in itertools.count(1) if _is_enough(number, start)) > 10


def test_too_few_descriptors_leave_no_program() -> None:
    def start() -> Crew:
        return start_programs(lambda _: ["true"], 2, cast(Terminal, None))

    assert next(number for number in itertools.count(1) if _is_enough(number, start)) > 10


def test_a_program_that_can_not_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    before, children = leftovers.open_descriptors(), leftovers.children(os.getpid())
    watch, answers = os.pidfd_open, iter([None, OSError(errno.EMFILE, "no descriptor for it")])

    def watch_or_refuse(pid: int) -> int:
        refusal = next(answers)
        if refusal is not None:
            raise refusal
        return watch(pid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", watch_or_refuse)
        with pytest.raises(OSError, match="no descriptor for it"):
            start_programs(lambda _: ["sleep", "600"], 2, cast(Terminal, None))
    assert leftovers.children(os.getpid()) == children
    assert len(leftovers.open_descriptors()) == len(before)


def test_a_program_that_ends_before_it_is_a_rank_is_an_error_at_once() -> None:
    with pytest.raises(InternalError, match=r"^rank 0 did not start$"):
        start_programs(lambda _: ["true"], 2, cast(Terminal, None))


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_while_a_rank_is_forked_ends_all_ranks(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    fork, num_forks = os.fork, itertools.count()
    before, children = leftovers.open_descriptors(), leftovers.children(os.getpid())

    def fork_and_interrupt() -> int:
        pid = fork()
        if pid != 0 and next(num_forks) == rank:
            signal.raise_signal(signal.SIGINT)
        return pid

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            fork_crew(_wait_for_the_end, 2, redirect=True)
    assert leftovers.children(os.getpid()) == children
    assert len(leftovers.open_descriptors()) == len(before)

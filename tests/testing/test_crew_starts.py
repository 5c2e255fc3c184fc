"""Ranks that can't be started: the error comes, at once, and nothing is left open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from phalanx.launch.connection import Connection
from phalanx.testing.crew_starts import start_crew, start_programs
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
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + number, hard))
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

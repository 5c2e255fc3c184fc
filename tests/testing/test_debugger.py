"""pdb on a rank, through a real terminal."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from tests.testing.inner_runs import InnerRuns, chosen

pexpect: Any = pytest.importorskip("pexpect", reason="the debugger needs a terminal: pexpect is not installed")
pytestmark = pytest.mark.slow

_PROMPT = r"\(Pdb\) "


class _Terminal:
    """A person at a terminal in which pytest runs."""

    def __init__(self, inner: InnerRuns, *options: str) -> None:
        arguments = ["-m", "pytest", *chosen(()), *options]
        self._child = importlib.import_module("pexpect").spawn(
            sys.executable, arguments, cwd=str(inner.pytester.path), timeout=30, encoding="utf-8"
        )
        self.seen = ""

    def wait_for(self, pattern: str) -> str:
        self._child.expect(pattern)
        found = f"{self._child.before}{self._child.after}"
        self.seen += found
        return found

    def type(self, line: str) -> None:
        self._child.sendline(line)

    def wait_for_end(self) -> str:
        self._child.expect(pexpect.EOF)
        self.seen += self._child.before
        return self.seen

    def close(self) -> None:
        self._child.close(force=True)


@pytest.fixture
def inner_source(inner: InnerRuns) -> InnerRuns:
    inner.write(
        """
        @pytest.mark.ranks(3)
        def test_failure(group, rank):
            secret = 40 + rank
            group.barrier()
            if rank == 1: assert secret == 0
            group.barrier()

        @pytest.mark.ranks(2, timeout=20, kind=["process", "pool"])
        def test_breakpoint(group, rank):
            where = f"stopped on {rank}"
            if rank == 0: breakpoint()
            group.barrier()
            note("went on", rank)

        @pytest.mark.ranks(2, timeout=20)
        def test_both(rank):
            value = 70 + rank
            breakpoint()
            note("went on", value)

        def test_without_ranks():
            local = 123
            assert local == 0
        """
    )
    return inner


def test_pdb_opens_on_the_rank_that_failed_and_for_tests_without_ranks(inner_source: InnerRuns) -> None:
    terminal = _Terminal(inner_source, "--pdb", "-k", "failure or without")
    try:
        assert "rank 1 has the terminal" in terminal.wait_for(_PROMPT)
        terminal.type("p secret, rank")
        assert "(41, 1)" in terminal.wait_for(_PROMPT)
        terminal.type("c")
        assert "local == 0" in terminal.wait_for(_PROMPT)
        terminal.type("p local + 1")
        assert "124" in terminal.wait_for(_PROMPT)
        terminal.type("c")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "rank 1 of 3: AssertionError: assert 41 == 0" in seen
    assert "2 failed" in seen


def test_quitting_pdb_ends_the_session(inner_source: InnerRuns) -> None:
    terminal = _Terminal(inner_source, "--pdb", "-k", "failure or without")
    try:
        terminal.wait_for(_PROMPT)
        terminal.type("q")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "Exit: Quitting debugger" in seen
    assert "local == 0" not in seen


def test_breakpoint_stops_its_rank_and_the_test_goes_on_after(inner_source: InnerRuns) -> None:
    terminal = _Terminal(inner_source, "-k", "breakpoint")
    try:
        for _ in ("process", "pool"):
            assert "rank 0 has the terminal" in terminal.wait_for(_PROMPT)
            terminal.type("p where")
            assert "stopped on 0" in terminal.wait_for(_PROMPT)
            terminal.type("c")
        assert "2 passed" in terminal.wait_for_end()
    finally:
        terminal.close()
    assert inner_source.notes() == ["went on 0", "went on 0", "went on 1", "went on 1"]


def test_ranks_that_stop_at_the_same_breakpoint_get_the_terminal_one_after_the_other(inner_source: InnerRuns) -> None:
    terminal = _Terminal(inner_source, "-k", "both")
    try:
        for _ in range(2):
            terminal.wait_for(_PROMPT)
            terminal.type("p 'value', value")
            terminal.wait_for(_PROMPT)
            terminal.type("c")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "1 passed" in seen
    assert "('value', 70)" in seen
    assert "('value', 71)" in seen
    assert inner_source.notes() == ["went on 70", "went on 71"]

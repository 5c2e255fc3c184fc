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
            sys.executable, arguments, cwd=str(inner.pytester.path), timeout=60, encoding="utf-8"
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
        found = self._child.expect([pexpect.EOF, _PROMPT])
        self.seen += self._child.before
        assert found == 0, "the debugger asks again"
        return self.seen

    def close(self) -> None:
        self._child.close(force=True)


@pytest.fixture
def debugged(inner: InnerRuns) -> InnerRuns:
    inner.write(
        """
        @pytest.mark.ranks(3)
        def test_failure(group, rank):
            secret = 40 + rank
            group.barrier()
            if rank == 1: assert secret == 0
            group.barrier()

        def test_failure_without_ranks():
            local = 123
            assert local == 0

        @pytest.mark.ranks(2, kind="pool")
        def test_failure_of_one_more(rank): assert rank == 0

        def test_failure_never_reached(): note("reached")

        @pytest.mark.ranks(2)
        def test_several(rank): assert rank == 5

        @pytest.mark.ranks(2, timeout=20, kind=["process", "pool"])
        def test_breakpoint_of_one(group, rank):
            where = f"stopped on {rank}"
            if rank == 0: breakpoint()
            group.barrier()
            note("went on", rank)

        @pytest.mark.ranks(2, timeout=20)
        def test_breakpoint_of_both(rank):
            value = 70 + rank
            breakpoint()
            note("went on", value)
        """
    )
    return inner


def test_pdb_opens_on_the_rank_that_failed_and_quitting_it_ends_the_session(debugged: InnerRuns) -> None:
    terminal = _Terminal(debugged, "--pdb", "-k", "failure")
    try:
        assert "rank 1 has the terminal" in terminal.wait_for(_PROMPT)
        terminal.type("p secret, rank")
        assert "(41, 1)" in terminal.wait_for(_PROMPT)
        terminal.type("c")
        assert "local == 0" in terminal.wait_for(_PROMPT)
        terminal.type("p local + 1")
        assert "124" in terminal.wait_for(_PROMPT)
        terminal.type("c")
        terminal.wait_for(_PROMPT)
        terminal.type("q")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "rank 1 of 3: AssertionError: assert 41 == 0" in seen
    assert "Exit: Quitting debugger" in seen
    assert not debugged.notes()


def test_quitting_the_debugger_of_one_of_several_failed_ranks_is_enough(debugged: InnerRuns) -> None:
    terminal = _Terminal(debugged, "--pdb", "-k", "several")
    try:
        terminal.wait_for(_PROMPT)
        terminal.type("q")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "Exit: Quitting debugger" in seen
    assert seen.count("has the terminal") == 1


def test_breakpoint_stops_a_rank_and_several_get_the_terminal_one_after_the_other(debugged: InnerRuns) -> None:
    terminal = _Terminal(debugged, "-k", "breakpoint")
    try:
        for _ in ("process", "pool"):
            assert "rank 0 has the terminal" in terminal.wait_for(_PROMPT)
            terminal.type("p where")
            assert "stopped on 0" in terminal.wait_for(_PROMPT)
            terminal.type("c")
        for _ in range(2):
            terminal.wait_for(_PROMPT)
            terminal.type("p 'value', value")
            terminal.wait_for(_PROMPT)
            terminal.type("c")
        seen = terminal.wait_for_end()
    finally:
        terminal.close()
    assert "3 passed" in seen
    assert "('value', 70)" in seen
    assert "('value', 71)" in seen
    assert debugged.notes() == [f"went on {value}" for value in (0, 0, 1, 1, 70, 71)]

"""Commands of phalanx in which a system call fails, and what must come of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import leftovers
from tests.system_calls.cases import ERRORS, Case
from tests.system_calls.page import LAUNCHER, NOBODY, build_library, call_number_in, open_page, preloading

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 90.0
_TIDY_S = 10.0


@dataclass
class Ended:
    """How a command ended."""

    code: int
    output: str
    errors: str
    struck: int
    left: list[int]


class Commands:
    """Runs commands one after the other."""

    def __init__(self, folder: Path) -> None:
        self._library = build_library(folder)
        self._variables = preloading(self._library, folder)
        self._page = open_page(str(folder / "page"))
        self._mark = f"FAILING_CALLS_PAGE={folder / 'page'}".encode()

    def counts(self, arguments: Sequence[object]) -> dict[str, int]:
        """Return how often the command itself makes each call when none fails."""
        ended = self.run(arguments, Case(LAUNCHER, next(iter(ERRORS)), 0, 1 << 30))
        assert ended.code == 0, ended.errors
        return {call: self._page.counts[call_number_in(self._library, call)] for call in ERRORS}

    def run(self, arguments: Sequence[object], case: Case) -> Ended:
        """Run a command in which a call fails."""
        page = self._page
        page.call = call_number_in(self._library, case.call)
        page.error, page.first, page.count, page.struck = case.errno, case.first, case.count, 0
        for number in range(len(page.counts)):
            page.counts[number] = 0
        page.role = case.role
        command = [sys.executable, "-m", "tests.system_calls.command", *map(str, arguments)]
        done = subprocess.run(
            command, env=self._variables, cwd=_ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        page.role = NOBODY
        leftovers.wait_until(lambda: not self._marked(), _TIDY_S)
        return Ended(done.returncode, done.stdout, done.stderr, page.struck, self._marked())

    def _marked(self) -> list[int]:
        """Return processes that have the page in their environment: whatever the command has started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # gone, or another user's
                continue
        return found


def judge_command(ended: Ended, *, began: float, is_users: bool) -> list[str]:
    """Return what is wrong with how a command took it.

    Args:
        ended: How it ended.
        began: When it was started.
        is_users: Whether the call failed in the user's own program, whose exceptions are shown with a traceback.
    """
    wrong = [f"processes left behind: {ended.left}"] if ended.left else []
    if time.monotonic() - began > _LIMIT_S / 2:
        wrong.append("it took too long")
    if ended.code < 0 or "SIGKILL" in ended.errors or "SIGSEGV" in ended.errors:
        wrong.append(f"a signal: exit code {ended.code}")
    if ended.code > 0 and not is_users and "Traceback" in ended.errors:
        wrong.append("a bare traceback")
    if ended.code > 0 and "phalanx run: " not in ended.errors and "Error: " not in ended.errors:
        wrong.append("no words")
    return [f"{each}\n{ended.errors[-1500:]}" for each in wrong]

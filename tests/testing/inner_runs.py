"""Runs of pytest inside a test: their tests are texts, their results are what we look at."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path

import pytest

# Installed here for tests of how the ranks plugin gets on with them; each of those switches its own on.
OTHER_PLUGINS = ("asyncio", "anyio", "cov", "hypothesispytest", "randomly", "timeout", "xdist")
OF_EDITABLE_INSTALLS = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
_PRELUDE = """
import os, signal, sys, threading, time, warnings
import pytest, torch
import torch.distributed as dist
from notes import note
"""
_NOTES = """
def note(*what, sep=" "):
    with open({path!r}, "a") as file:
        file.write(sep.join(map(str, what)) + "\\n")
"""


class InnerRuns:
    """Writes test modules into a folder of its own and runs pytest on them.

    Tests in them have the usual modules imported, and `note(...)`: what any rank notes, we can read.
    """

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self._notes = pytester.path / "notes.txt"
        pytester.makepyfile(notes=_NOTES.format(path=str(self._notes)))

    def write(self, source: str, name: str = "test_inner") -> Path:
        text = _PRELUDE + textwrap.dedent(source)
        return self.pytester.makepyfile(**{name: text})

    def run(self, source: str, *options: str, needs: tuple[str, ...] = ()) -> pytest.RunResult:
        """Run tests in this process; faster than in another, which must import torch first."""
        self.write(source)
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # not our own, which are errors
            return self.pytester.runpytest_inprocess(*chosen(needs), *options)

    def run_apart(self, source: str, *options: str, needs: tuple[str, ...] = ()) -> pytest.RunResult:
        """Run tests in a process of its own."""
        self.write(source)
        return self.pytester.runpytest_subprocess(*chosen(needs), *options)

    def notes(self) -> list[str]:
        """Return what was noted, in alphabetical order: ranks come in any."""
        return sorted(self._notes.read_text().splitlines()) if self._notes.exists() else []


def chosen(needs: tuple[str, ...]) -> list[str]:
    """Return the options that leave the other plugins out, but for some."""
    left_out = [name for name in OTHER_PLUGINS if name not in needs]
    return ["-W", OF_EDITABLE_INSTALLS, *(part for name in left_out for part in ("-p", f"no:{name}"))]

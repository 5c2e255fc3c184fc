"""Runs of unittest inside a test: of classes whose tests may fail, to look at the results."""

from __future__ import annotations

import mmap
import struct
import time
import unittest
from dataclasses import dataclass, field
from typing import Any

from phalanx.testing.unittest.timeouts import TIMEOUT_OVERRIDE


@dataclass
class Results:
    """What became of each test: "passed", or how not, with the text."""

    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class _Recorder(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.results = Results()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.results.passed.append(_name(test))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.results.skipped[_name(test)] = reason

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.results.errors[_name(test)] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.results.failures[_name(test)] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2]


def run(case: type, *names: str, timeout_s: int = 100) -> Results:
    """Run tests of a class, all of them when none is named, in alphabetical order."""
    recorder = _Recorder()
    suite = unittest.TestSuite(case(name) for name in names or unittest.TestLoader().getTestCaseNames(case))
    for test in suite:
        TIMEOUT_OVERRIDE[_name(test)] = timeout_s  # type: ignore[arg-type]
    try:
        suite.run(recorder)
    finally:
        for name in list(TIMEOUT_OVERRIDE):
            if name not in ("test_ddp_uneven_inputs", "test_DistributedDataParallel", "test_join_kwargs"):
                del TIMEOUT_OVERRIDE[name]
    return recorder.results


class SharedMoment:
    """A moment that a rank notes and the main process reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def note(self) -> None:
        self._memory[:] = struct.pack("d", time.monotonic())

    def seconds_since(self) -> float:
        moment: float = struct.unpack("d", self._memory[:])[0]
        return time.monotonic() - moment

"""pytest's `subtests` on a rank: failures are collected here and reported by pytest's own process."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from phalanx.launch.threads import RankCancelled
from phalanx.testing.faults import RankLost
from phalanx.testing.rank_report import report_failure


@dataclass
class SubtestResult:
    """How one subtest ended on one rank.

    Attributes:
        message: Its name in the test.
        values: Its keyword arguments, as text.
        outcome: "passed", "failed" or "skipped".
        headline: Why it failed or was skipped.
        shown: How pytest shows the failure.
        failure: The class and the place of the failure, to compare it with others.
    """

    message: str | None
    values: dict[str, str]
    outcome: str
    headline: str = ""
    shown: Any = None
    failure: str = ""


class RankSubtests:
    """The fixture `subtests` on a rank."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.results: list[SubtestResult] = []

    def __repr__(self) -> str:
        return "<subtests>"

    @contextlib.contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        """Run a part of a test whose failure does not end the test."""
        values = {name: repr(value) for name, value in kwargs.items()}
        try:
            yield
        except (pytest.skip.Exception, unittest.SkipTest) as skip:
            self.results.append(SubtestResult(msg, values, "skipped", str(skip)))
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception, RankLost, RankCancelled):
            raise
        except BaseException as error:
            if type(error).__name__ == "UnsatisfiedAssumption":  # Hypothesis's
                raise
            shown = self._item.repr_failure(pytest.ExceptionInfo.from_exception(error))
            found = report_failure(error, shown)
            self.results.append(
                SubtestResult(msg, values, "failed", found.headline, shown, f"{found.kind} {found.place}")
            )
        else:
            self.results.append(SubtestResult(msg, values, "passed"))

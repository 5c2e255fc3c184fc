"""Upstream's own marks, read and removed."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable

from phalanx_tools.conformance import marks


def _decorated(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def wrapper(*args: object) -> str:
        return "outer " + function(*args)

    return wrapper


def _good(*_: object) -> str:
    return "inner"


def test_a_test_without_a_mark_is_not_skipped() -> None:
    assert marks.reason_to_skip(_good) is None
    assert not marks.is_switched_off(_good)


def test_a_mark_that_names_an_issue_holds_everywhere() -> None:
    off = unittest.skip("https://github.com/pytorch/pytorch/issues/1")(_good)
    assert marks.is_switched_off(off)
    assert not marks.is_switched_off(unittest.skip("Only NCCL supports it")(_good))


def test_a_mark_is_removed() -> None:
    off: Callable[..., str] = unittest.skip("flaky")(_good)
    on = marks.without_marks(off)
    assert marks.reason_to_skip(on) is None
    assert on() == "inner"


def test_a_mark_inside_other_decorators_is_removed() -> None:
    off: Callable[..., str] = unittest.skip("flaky")(_decorated(unittest.skip("flaky")(_good)))
    assert marks.without_marks(off)() == "outer inner"

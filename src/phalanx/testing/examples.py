"""Hypothesis over ranks: its engine runs once, in pytest's process, and every example runs on all ranks.

So all ranks always run the same example, and Hypothesis shrinks a failure of any rank by running all ranks again. A
failure can't leave ranks in different examples. All examples of a test use the same ranks; each gets a new group.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.sending import pack
from phalanx.testing.ending import Ending
from phalanx.testing.verdict import Verdict

# Runs one example on all ranks.
RunExample = Callable[[bytes], Verdict]


def is_hypothesis_test(item: Any) -> bool:
    """Tell whether a test was decorated with @given."""
    return "hypothesis" in sys.modules and hasattr(getattr(item, "obj", None), "hypothesis")


def allow_fixtures_of_ranks(item: Any) -> None:
    """Keep Hypothesis from warning of fixtures that last longer than an example: ranks make them for each example."""
    hypothesis = importlib.import_module("hypothesis")
    function = getattr(item.obj, "__func__", item.obj)
    before = getattr(function, "_hypothesis_internal_use_settings", None)
    if before is not None:
        check = hypothesis.HealthCheck
        checks = [*before.suppress_health_check, check.function_scoped_fixture]
        if hasattr(check, "differing_executors"):  # a method has another instance for every number of ranks
            checks.append(check.differing_executors)
        changed = hypothesis.settings(before, suppress_health_check=checks)
        function._hypothesis_internal_use_settings = changed


@contextmanager
def on_ranks(item: Any, run: RunExample, keep: Callable[[Verdict], None]) -> Iterator[Callable[..., Any]]:
    """Make the test's examples run on ranks inside the block; yield the function to call instead of the test.

    Args:
        item: The test.
        run: Runs an example.
        keep: Called with every verdict.
    """
    control: Any = importlib.import_module("hypothesis.control")
    context: list[Any] = [None]
    handle = item.obj.hypothesis
    inner = handle.inner_test
    fixtures = {*item.funcargs, "self"}

    def dispatch(*_: Any, **arguments: Any) -> None:
        example = {name: value for name, value in arguments.items() if name not in fixtures}
        context[0] = control._current_build_context.value
        verdict = run(_pack(example))
        keep(verdict)
        if verdict.outcome == "rejected":
            importlib.import_module("hypothesis").reject()
        if verdict.outcome == "failed":
            raise verdict.error()
        failed = [result for ending in verdict.endings for result in _subtests(ending) if result.outcome == "failed"]
        if failed:
            raise AssertionError(f"subtest {failed[0].message or ''} {failed[0].values}: {failed[0].headline}")
        if verdict.outcome in ("skipped", "xfailed"):
            import pytest

            (pytest.skip if verdict.outcome == "skipped" else pytest.xfail)(verdict.reason)

    def take_example(*args: Any, **arguments: Any) -> Any:
        # assume() checks that it runs inside a test of Hypothesis, also on a rank that is a thread.
        with control._current_build_context.with_value(context[0]):
            return inner(*args, **arguments)

    dispatch.__name__ = inner.__name__  # Hypothesis shows it
    handle.inner_test = dispatch
    try:
        yield take_example
    finally:
        handle.inner_test = inner


def _subtests(ending: Ending) -> list[Any]:
    return ending.report.subtests if ending.report is not None else []


def _pack(example: Mapping[str, Any]) -> bytes:
    for name, value in example.items():
        try:
            pack(value)
        except Exception as error:
            raise UsageError(
                f"the example of argument '{name}' is a {type(value).__name__}, which can't be sent to the ranks "
                f"({error}); draw plain values with @given. What is drawn inside the test, as with st.data(), could "
                f"not be the same on every rank"
            ) from None
        if type(value).__name__ == "DataObject":
            raise UsageError(
                f"argument '{name}' draws inside the test (st.data()), which could not be the same on every rank; "
                f"draw it with @given, or with a composite strategy"
            )
    return pack(dict(example))


def unpack(example: bytes) -> dict[str, Any]:
    """Return an example's arguments."""
    arguments: dict[str, Any] = pickle.loads(example)
    return arguments

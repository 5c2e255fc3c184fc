"""One pytest test on one rank: its fixtures, its function, and its report."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import threading
import unittest
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from phalanx.diagnosis.retold_errors import seen_through
from phalanx.diagnosis.tracebacks import is_from_inside, without_internal_frames
from phalanx.groups.open_groups import note_end
from phalanx.launch.context import current_context, mark_failed, tell_peers
from phalanx.settings import full_trace
from phalanx.testing.faults import RankLost, unstruck
from phalanx.testing.left_behind import find_threads, note_threads
from phalanx.testing.rank_fixtures import DeferredFixture, RankSetup
from phalanx.testing.rank_gpus import set_up_gpus
from phalanx.testing.rank_logging import RankLog, rank_logging
from phalanx.testing.rank_report import CaughtWarning, RankReport, caught_warnings, report_failure
from phalanx.testing.rank_subtests import RankSubtests
from phalanx.testing.real_gpus import take_gpu
from phalanx.testing.session_plans import gpus_of, plan_of

# Python 3.11's parser counts its depth per process, so threads must not parse at the same time.
_showing = threading.Lock()


@dataclass
class RankTest:
    """What a rank needs to know about a test.

    Attributes:
        item: pytest's item.
        values: Fixtures that pytest has set up.
        deferred: Fixtures to be set up here.
        is_thread: Whether the rank shares its process with others.
        debug: Called with the failure before anything is torn down.
    """

    item: Any
    values: Mapping[str, Any]
    deferred: Sequence[DeferredFixture]
    is_thread: bool = False
    debug: Callable[[Any, Any], None] | None = None
    capture: Callable[[], Any] | None = None  # makes the fixture capsys of a thread
    inner: Callable[..., Any] | None = None  # with Hypothesis: the function that takes an example
    example: Mapping[str, Any] = field(default_factory=dict)
    _runner: asyncio.Runner | None = field(default=None, repr=False)

    def run(self) -> RankReport:
        """Run it. Never raises, whatever the test does."""
        threads = note_threads()
        # Threads share the list of filters, so pytest's own recorder sees their warnings.
        recording: Any = contextlib.nullcontext([]) if self.is_thread else warnings.catch_warnings(record=True)
        num_properties = len(self.item.user_properties)
        with recording as caught, rank_logging(self.item, is_thread=self.is_thread) as log:
            report = self._run(log)
        if not self.is_thread:
            report.properties = self.item.user_properties[num_properties:]
        report.warnings = caught_warnings(caught)
        self._warn_of_unstruck_faults(report)
        report.log = log.text()
        if not self.is_thread:
            report.left_behind += find_threads(threads)
        return report

    def _warn_of_unstruck_faults(self, report: RankReport) -> None:
        context = current_context()
        waiting = unstruck(context) if context is not None and report.outcome == "passed" else []
        if waiting:
            message = f"a fault took no effect: this rank did not reach {', '.join(waiting)}"
            file, line, _ = self.item.location
            report.warnings.append(CaughtWarning(message, UserWarning, str(file), (line or 0) + 1))

    def _run(self, log: RankLog) -> RankReport:
        instance = getattr(self.item, "instance", None)
        if self.is_thread and instance is not None:
            instance = copy.copy(instance)  # each rank has its own `self`
        subtests = RankSubtests(self.item)
        special: dict[str, Any] = {"subtests": subtests, "caplog": log.caplog(self.item)}
        if self.capture is not None:
            special["capsys"] = self.capture()
        setup = RankSetup(self.item, instance, {**self.values, **special}, self.run_async)
        try:
            report = self._attempt(functools.partial(self._call, setup, special, instance))
            note_end()
            teardown = self._attempt(setup.tear_down)
            if teardown.outcome != "passed" and report.outcome != "failed":
                report = teardown
            elif teardown.outcome == "failed":
                report.headline += f"; and in its teardown {teardown.headline}"
        finally:
            if self._runner is not None:
                self._runner.close()
        report.subtests = subtests.results
        return report

    def _call(self, setup: RankSetup, special: Mapping[str, Any], instance: Any) -> None:
        __tracebackhide__ = True
        self._set_up_gpus()
        setup.set_up([fixture for fixture in self.deferred if fixture.name not in special])
        arguments = {name: setup.value(name) for name in self.item._fixtureinfo.argnames}
        function = _plain_function(self.item, instance)
        if self.inner is not None:
            function = self.inner if instance is None else self.inner.__get__(instance)
            arguments |= self.example
        result = function(**arguments)
        if inspect.isawaitable(result):
            self.run_async(result)
        elif result is not None:
            text = f"the test returned a {type(result).__name__}, which is ignored; did you mean to assert something?"
            warnings.warn(pytest.PytestReturnNotNoneWarning(text), stacklevel=2)

    def _set_up_gpus(self) -> None:
        plan, context = plan_of(self.item), current_context()
        assert plan is not None
        assert context is not None
        if plan.is_on_real_gpus:
            take_gpu(context.rank, context.size, gpus_of(self.item.config), is_thread=self.is_thread)
        elif plan.gpus is not None and not self.is_thread:
            set_up_gpus(plan.gpus)

    def _attempt(self, step: Callable[[], None]) -> RankReport:
        __tracebackhide__ = True
        try:
            step()
        except (pytest.skip.Exception, unittest.SkipTest) as skip:
            return RankReport("skipped", headline=str(skip))
        except pytest.xfail.Exception as failing:
            return RankReport("xfailed", headline=str(failing))
        except RankLost:  # an injected fault
            raise
        except Exception as error:
            if type(error).__name__ == "UnsatisfiedAssumption":  # Hypothesis's assume() and reject()
                return RankReport("rejected", headline="Hypothesis rejected the example")
            return self._fail(error)
        except BaseException as error:
            return self._fail(error)
        return RankReport("passed")

    def _fail(self, error: BaseException) -> RankReport:
        with _showing if self.is_thread else contextlib.nullcontext():
            report = report_failure(error, self._show(error))
        if self.debug is not None and not report.is_consequence:
            self.debug(pytest.ExceptionInfo.from_exception(error), report)
        if not self.is_thread:
            mark_failed(error)  # peers must not take this for a regular end
        tell_peers(report.headline)
        return report

    def _show(self, error: BaseException) -> Any:
        """Return how pytest shows a failure; without the calls inside phalanx and torch, unless the user wants them."""
        if self.item.config.getoption("fulltrace", False) or full_trace():
            return self.item.repr_failure(pytest.ExceptionInfo.from_exception(error))
        if is_from_inside(error):  # such as a fixture of phalanx that can't do what the test asks for
            return "\n".join(f"E   {line}" for line in f"{type(error).__name__}: {error}".splitlines())
        with seen_through(error) as seen, without_internal_frames(seen):
            return self.item.repr_failure(pytest.ExceptionInfo.from_exception(seen))

    def run_async(self, awaitable: Awaitable[Any]) -> Any:
        """Run the awaitable of an async test or fixture to its end, in this rank's own event loop."""
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> Any:
            __tracebackhide__ = True
            return await awaitable

        return self._runner.run(wait())


def _plain_function(item: Any, instance: Any) -> Callable[..., Any]:
    """Return the test's original function: an async plugin may have bound it to an event loop of pytest's process."""
    function: Callable[..., Any] = item.obj
    original = inspect.unwrap(function)
    if inspect.iscoroutinefunction(original):
        is_method = instance is not None and not inspect.ismethod(original)
        return original.__get__(instance) if is_method else original  # type: ignore[no-any-return]
    if instance is not None and inspect.ismethod(function) and function.__self__ is not instance:
        return function.__func__.__get__(instance)  # type: ignore[no-any-return]
    return function

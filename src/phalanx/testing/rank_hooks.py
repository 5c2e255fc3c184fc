"""What the plugin does with tests on ranks; only a session that has some imports this module."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from phalanx.errors import RankFailedError, SharedMemoryError, UsageError
from phalanx.settings import full_trace
from phalanx.testing import coverage_of_ranks, fixtures
from phalanx.testing.examples import allow_fixtures_of_ranks, is_hypothesis_test
from phalanx.testing.markers import MARKS_ARE_OURS, SWITCH_OFF, find_mark
from phalanx.testing.plan import Plan, read_marker
from phalanx.testing.rank_fixtures import DeferredFixture, OnRanksOnly
from phalanx.testing.ranks_shown import RanksShown, output_sections
from phalanx.testing.ranks_warning import RanksWarning
from phalanx.testing.runner import Runner
from phalanx.testing.session_plans import check_owner, defaults_of, plan_of
from phalanx.testing.stash_keys import DEFERRED, PLAN, RUNNER, VERDICT
from phalanx.testing.subtest_reports import log_subtests
from phalanx.testing.verdict import Verdict

# Fixtures of pytest that hold a stream or a patch of their process; every rank needs its own.
_CAPTURING = ("capsys", "capfd", "capsysbinary", "capfdbinary", "capteesys", "recwarn")
_OF_WARM_RANKS = ("monkeypatch", "caplog", "record_property")


def check_options(config: pytest.Config) -> None:
    """Check what the command line and the ini file say about ranks.

    Raises:
        pytest.UsageError: It makes no sense.
    """
    defaults_of(config)


def make_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each number of ranks and each kind that the marker names."""
    marker = find_mark(metafunc.definition, "ranks")
    if marker is None:
        return
    try:
        plans = read_marker(marker.args, marker.kwargs, defaults_of(metafunc.config))
    except UsageError:
        return  # the test itself reports this error when it runs
    if len(plans) > 1:
        with_kind = len({plan.kind for plan in plans}) > 1
        metafunc.fixturenames.append(PLAN)
        ids = [plan.label(with_kind=with_kind) for plan in plans]
        metafunc.parametrize(PLAN, plans, ids=ids, indirect=True)


def runner_of(item: Any) -> Runner:
    """Return the runner of this session."""
    if RUNNER not in item.config.stash:
        item.config.stash[RUNNER] = Runner(item.config)
    runner: Runner = item.config.stash[RUNNER]
    return runner


def prepare(item: pytest.Item) -> None:
    """Refuse a test that can't run; after pytest has evaluated skipif, and before anything is set up."""
    reason = _reason_against(item)
    if reason:
        pytest.fail(reason, pytrace=False)
    plan = plan_of(item)
    if plan is not None:
        missing = runner_of(item).reason_to_skip(plan)
        if missing:
            raise pytest.skip.Exception(missing, _use_item_location=True)
        item.stash[DEFERRED] = []


def _reason_against(item: pytest.Item) -> str:
    try:
        check_owner(item)
    except UsageError as error:
        return f"{error}\n{SWITCH_OFF}"
    try:
        plan = plan_of(item)
        if plan is None:
            return ""
        if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
            if plan.gpus is not None and find_mark(item, "ranks") is None:
                return "@pytest.mark.virtual_gpus is for test functions and plain classes, not for unittest.TestCase"
            return (
                "@pytest.mark.ranks is for test functions and plain classes; in a unittest.TestCase use "
                "phalanx.testing.unittest.MultiProcessTestCase"
            )
        runner_of(item).check(plan)
        if is_hypothesis_test(item):
            allow_fixtures_of_ranks(item)
    except UsageError as error:
        return f"{error}\n{MARKS_ARE_OURS}"
    return ""


def postpone(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Leave a fixture that belongs to ranks for the ranks."""
    item = request.node
    deferred = item.stash[DEFERRED]
    if not _belongs_to_ranks(fixturedef, item, deferred):
        return None
    name = fixturedef.argname
    parameter = {"parameter": request.param} if hasattr(request, "param") else {}
    deferred.append(
        DeferredFixture(
            name,
            _as_written(fixturedef.func),
            tuple(fixturedef.argnames),
            takes_instance=_is_method(fixturedef.func, item),
            **parameter,
        )
    )
    stand_in = OnRanksOnly(name)
    fixturedef.cached_result = (stand_in, fixturedef.cache_key(request), None)  # type: ignore[arg-type]
    return stand_in


def _belongs_to_ranks(fixturedef: pytest.FixtureDef[Any], item: Any, deferred: list[DeferredFixture]) -> bool:
    if any(fixture.name in fixturedef.argnames for fixture in deferred):
        return True
    name, home = fixturedef.argname, getattr(fixturedef.func, "__module__", "")
    if home == fixtures.__name__:
        return name in fixtures.RANKS_OWN
    if not home.startswith("_pytest."):
        return False
    plan = plan_of(item)
    assert plan is not None
    if plan.kind == "thread":
        return False
    is_sent = plan.kind == "pool" or runner_of(item).needs_shadow(plan)
    return name in _CAPTURING or (is_sent and name in _OF_WARM_RANKS)


def _as_written(function: Any) -> Any:
    """Return a fixture's function; an async plugin may have bound it to an event loop of this process."""
    original = inspect.unwrap(function)
    is_async = inspect.iscoroutinefunction(original) or inspect.isasyncgenfunction(original)
    return original if is_async else function


def _is_method(function: Any, item: Any) -> bool:
    """Tell whether a fixture's function still has to be bound to the test's instance."""
    cls = getattr(item, "cls", None)
    if cls is None:
        return False
    if hasattr(function, "__self__"):
        return isinstance(function.__self__, cls)
    home = getattr(function, "__qualname__", "").rpartition(".")[0]
    return home in {parent.__qualname__ for parent in cls.__mro__}


def run_on_ranks(pyfuncitem: pytest.Function) -> bool:
    """Run the test on its ranks."""
    plan = plan_of(pyfuncitem)
    assert plan is not None
    runner = runner_of(pyfuncitem)
    values = {name: value for name, value in pyfuncitem.funcargs.items() if not isinstance(value, OnRanksOnly)}
    deferred = pyfuncitem.stash[DEFERRED]
    reason = ""
    try:
        if is_hypothesis_test(pyfuncitem):
            _run_examples(runner, pyfuncitem, plan, values, deferred)
            return True
        verdict = runner.run(pyfuncitem, plan, values, deferred)
    except (UsageError, RankFailedError, SharedMemoryError) as error:  # the test can't be run here
        reason = str(error)
        if pyfuncitem.stash.get(VERDICT, None) is not None:
            raise  # an example of Hypothesis raised it
    if reason:
        pytest.fail(reason, pytrace=False)
    _keep(pyfuncitem, verdict)
    log_subtests(pyfuncitem, verdict)
    if verdict.outcome == "skipped":
        raise pytest.skip.Exception(verdict.reason, _use_item_location=True)
    if verdict.outcome == "xfailed":
        raise pytest.xfail.Exception(verdict.reason)
    if verdict.interruption is not None:
        raise verdict.interruption
    if any(ending.report is not None and ending.report.wants_exit for ending in verdict.endings):
        pytest.exit("Quitting debugger")
    if verdict.outcome == "failed":
        raise verdict.error()
    return True


def _run_examples(
    runner: Runner, item: pytest.Function, plan: Plan, values: dict[str, Any], deferred: list[DeferredFixture]
) -> None:
    """Let Hypothesis choose examples; it raises what the smallest failing one raised."""
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    with runner.examples(item, plan, values, deferred, lambda verdict: _keep(item, verdict)):
        item.obj(**given)


def _keep(item: pytest.Function, verdict: Verdict) -> None:
    """Add the ranks' sections, properties and warnings to the test."""
    item.stash[VERDICT] = verdict
    # If there are several examples of Hypothesis, the last one counts.
    item._report_sections[:] = [section for section in item._report_sections if " of rank" not in section[0]]
    for stream, whose, text in output_sections(verdict.endings):
        item.add_report_section(whose, stream, text)
    for ending in verdict.endings:
        if ending.report is not None:
            coverage_of_ranks.add(ending.report.coverage)
            item.user_properties += ending.report.properties
    properties = item.user_properties  # ranks may record the same ones
    properties[:] = [each for place, each in enumerate(properties) if each not in properties[:place]]
    _pass_on_warnings(verdict, item)


def _pass_on_warnings(verdict: Verdict, item: pytest.Item) -> None:
    seen = set()
    for ending in verdict.endings:
        for found in ending.report.warnings if ending.report is not None else ():
            key = (found.text, found.category, found.filename, found.line)
            if key not in seen:
                seen.add(key)
                with warnings.catch_warnings():
                    warnings.simplefilter("always")  # it has passed the filters of the rank
                    warnings.warn_explicit(found.text, found.category, found.filename, found.line)
        left = ending.report.left_behind if ending.report is not None else ()
        if left and verdict.outcome == "passed":
            _warn_of_left_behind(item, f"rank {ending.rank} left behind: {', '.join(left)}")


def _warn_of_left_behind(item: pytest.Item, what: str) -> None:
    message = f"{what}; it was ended. Join threads and wait for processes before the test ends"
    try:
        item.warn(RanksWarning(message))
    except RanksWarning:  # warnings are errors in this session
        reason = message
    else:
        return
    pytest.fail(reason, pytrace=False)


def show_ranks(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Show what happened on which rank instead of a traceback through this plugin."""
    verdict = item.stash[VERDICT]
    if report.outcome == "failed" and verdict.outcome == "failed":
        notes = getattr(call.excinfo.value, "__notes__", []) if call.excinfo is not None else []
        is_full = item.config.getoption("fulltrace", False) or full_trace()
        report.longrepr = RanksShown(verdict, notes, is_full=is_full)
    # Ranks that are threads log into pytest's own section too.
    report.sections = [section for section in report.sections if section[0] != "Captured log call"]
    del item.stash[VERDICT]

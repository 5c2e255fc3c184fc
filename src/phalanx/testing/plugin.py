"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on four ranks.

The plugin does not import torch until a test needs it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Generator
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.testing import coverage_of_ranks, fixtures
from phalanx.testing.examples import allow_fixtures_of_ranks, is_hypothesis_test
from phalanx.testing.fixtures import (
    device,
    group,
    process_group,
    rank,
    rank_tmp_path,
    ranks_kind,
    virtual_gpus,
    world_size,
)
from phalanx.testing.plan import BACKENDS, KINDS, Defaults, Plan, read_marker
from phalanx.testing.rank_fixtures import DeferredFixture, OnRanksOnly
from phalanx.testing.ranks_shown import RanksShown, output_sections
from phalanx.testing.real_gpus import keep_forkable
from phalanx.testing.runner import Runner
from phalanx.testing.session_plans import DEFAULTS, PLAN, plan_of
from phalanx.testing.subtest_reports import log_subtests
from phalanx.testing.verdict import Verdict

__all__ = ["device", "group", "process_group", "rank", "rank_tmp_path", "ranks_kind", "virtual_gpus", "world_size"]

_DEFERRED = pytest.StashKey[list[DeferredFixture]]()  # in the order of their set-up
_VERDICT = pytest.StashKey[Verdict]()
_RUNNER = pytest.StashKey[Runner]()
# Fixtures of pytest that hold a stream or a patch of their process; every rank needs its own.
_CAPTURING = ("capsys", "capfd", "capsysbinary", "capfdbinary", "capteesys", "recwarn")
_OF_WARM_RANKS = ("monkeypatch", "caplog", "record_property")


class RanksWarning(pytest.PytestWarning):
    """A test on ranks left a thread or a process behind, or a fault took no effect."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options = parser.getgroup("ranks", "tests on several ranks (phalanx)")
    options.addoption("--ranks-kind", choices=KINDS, help="run ranks as new processes, threads, or a pool of processes")
    options.addoption("--ranks-backend", choices=BACKENDS, help="the backend of the fixtures group and process_group")
    options.addoption("--ranks-timeout", type=float, metavar="SECONDS", help="time limit of a test on ranks")
    options.addoption(
        "--ranks-shadow",
        action="store_true",
        help="fork ranks from a second pytest that has only collected the tests; needed once CUDA is initialised",
    )
    parser.addini("ranks_kind", "default of --ranks-kind", default="process")
    parser.addini("ranks_backend", "default of --ranks-backend", default="phalanx")
    parser.addini("ranks_timeout", "seconds that a test on ranks may take", default="60")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Make sure that ranks can be forked from this process, before any test module is imported."""
    keep_forkable()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and read the defaults once."""
    config.addinivalue_line(
        "markers",
        "ranks(n, *, kind, timeout, backend, device, gpus, races): run the test on n ranks. ranks([1, 2, 4]) makes one "
        "test for each number. kind: process (default), thread or pool; timeout: seconds (default 60); "
        'gpus: "virtual" for one virtual GPU per rank, or "virtual:4"; races: off, warn or raise',
    )
    config.addinivalue_line(
        "markers",
        "virtual_gpus(n=4, *, races, timeout): run the test in a separate process with n virtual GPUs",
    )
    config.stash[DEFAULTS] = _read_defaults(config)
    config.stash[_RUNNER] = Runner(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End warm ranks."""
    runner = config.stash.get(_RUNNER, None)
    if runner is not None:
        runner.close()


def _read_defaults(config: pytest.Config) -> Defaults:
    kind = config.getoption("--ranks-kind") or config.getini("ranks_kind")
    backend = config.getoption("--ranks-backend") or config.getini("ranks_backend")
    given = config.getoption("--ranks-timeout")
    timeout = config.getini("ranks_timeout") if given is None else given
    try:
        (plan,) = read_marker((1,), {"kind": kind, "backend": backend, "timeout": float(timeout)}, Defaults())
    except (UsageError, ValueError) as error:
        raise pytest.UsageError(f"ranks_kind, ranks_backend, ranks_timeout: {error}") from None
    return Defaults(plan.kind, plan.timeout_s, plan.backend)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each number of ranks and each kind that a marker names."""
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is None:
        return
    try:
        plans = read_marker(marker.args, marker.kwargs, metafunc.config.stash[DEFAULTS])
    except UsageError:
        return  # the test itself reports this error when it runs
    if len(plans) > 1:
        with_kind = len({plan.kind for plan in plans}) > 1
        metafunc.fixturenames.append(PLAN)
        metafunc.parametrize(PLAN, plans, ids=[plan.label(with_kind=with_kind) for plan in plans], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let fixtures of other plugins override ours of the same name, as those of a conftest do."""
    manager: Any = session._fixturemanager

    def is_ours(definition: Any) -> bool:
        return getattr(definition.func, "__module__", "") == fixtures.__name__

    for name in __all__:
        # pytest keeps overriding fixtures last; since 9.2 it keeps them by node, and first.
        getattr(manager, "_arg2fixturedefs", {}).get(name, []).sort(key=is_ours, reverse=True)
        for definitions in getattr(manager, "_arg2node2fixturedefs", {}).get(name, {}).values():
            definitions.sort(key=is_ours)


@pytest.fixture
def _ranks_plan(request: pytest.FixtureRequest) -> Any:
    return request.param


def runner_of(item: Any) -> Runner:
    """Return the runner of this session."""
    runner: Runner = item.config.stash[_RUNNER]
    return runner


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that can't run; after pytest has evaluated skipif, and before anything is set up."""
    reason = _reason_against(item)
    if reason:
        pytest.fail(reason, pytrace=False)
    plan = plan_of(item)
    if plan is not None:
        missing = runner_of(item).reason_to_skip(plan)
        if missing:
            raise pytest.skip.Exception(missing, _use_item_location=True)
        item.stash[_DEFERRED] = []


def _reason_against(item: pytest.Item) -> str:
    try:
        plan = plan_of(item)
        if plan is None:
            return ""
        if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
            if plan.gpus is not None and item.get_closest_marker("ranks") is None:
                return "@pytest.mark.virtual_gpus is for test functions and plain classes, not for unittest.TestCase"
            return (
                "@pytest.mark.ranks is for test functions and plain classes; in a unittest.TestCase use "
                "phalanx.testing.unittest.MultiProcessTestCase"
            )
        runner_of(item).check(plan)
        if is_hypothesis_test(item):
            allow_fixtures_of_ranks(item)
    except UsageError as error:
        return str(error)
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Leave fixtures that belong to ranks for the ranks."""
    item = request.node
    deferred = item.stash.get(_DEFERRED, None) if isinstance(item, pytest.Function) else None
    if deferred is None or not _belongs_to_ranks(fixturedef, item, deferred):
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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the test on its ranks."""
    if _DEFERRED not in pyfuncitem.stash:
        return None
    plan = plan_of(pyfuncitem)
    assert plan is not None
    runner = runner_of(pyfuncitem)
    values = {name: value for name, value in pyfuncitem.funcargs.items() if not isinstance(value, OnRanksOnly)}
    deferred = pyfuncitem.stash[_DEFERRED]
    reason = ""
    try:
        if is_hypothesis_test(pyfuncitem):
            _run_examples(runner, pyfuncitem, plan, values, deferred)
            return True
        verdict = runner.run(pyfuncitem, plan, values, deferred)
    except UsageError as error:
        reason = str(error)
        if pyfuncitem.stash.get(_VERDICT, None) is not None:
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
    item.stash[_VERDICT] = verdict
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what happened on which rank instead of a traceback through this plugin."""
    report = yield
    verdict = item.stash.get(_VERDICT, None)
    if call.when == "call" and verdict is not None:
        if report.outcome == "failed" and verdict.outcome == "failed":
            notes = getattr(call.excinfo.value, "__notes__", []) if call.excinfo is not None else []
            report.longrepr = RanksShown(verdict, notes)
        # Ranks that are threads log into pytest's own section too.
        report.sections = [section for section in report.sections if section[0] != "Captured log call"]
        del item.stash[_VERDICT]
    return report

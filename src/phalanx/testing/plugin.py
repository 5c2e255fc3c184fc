"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on four ranks.

Where phalanx is installed, every session of pytest imports this module, so it imports little. What tests on ranks need
is imported when the first one is found, and torch when the first one runs.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from phalanx.real_gpus.device_files import count_device_files
from phalanx.testing import fixtures
from phalanx.testing.fixtures import (
    _ranks_plan,
    device,
    group,
    process_group,
    rank,
    rank_tmp_path,
    ranks_kind,
    virtual_gpus,
    world_size,
)
from phalanx.testing.kinds import BACKENDS, KINDS
from phalanx.testing.markers import (
    SWITCH_OFF,
    asks_for_virtual_gpus,
    declare_markers,
    describe_owners,
    find_mark,
    find_unclear_marks,
    note_ini_markers,
)
from phalanx.testing.ranks_warning import RanksWarning
from phalanx.testing.stash_keys import DEFERRED, RUNNER, VERDICT

__all__ = [
    "RanksWarning",
    "_ranks_plan",
    "device",
    "group",
    "process_group",
    "rank",
    "rank_tmp_path",
    "ranks_kind",
    "virtual_gpus",
    "world_size",
]
_FIXTURES = [name for name in __all__ if name != "RanksWarning"]
_OPTIONS = ("ranks_kind", "ranks_backend", "ranks_timeout")


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
    parser.addini("ranks_kind", "how ranks are run: process, thread or pool (default process)")
    parser.addini("ranks_backend", "the backend of the fixtures group and process_group (default phalanx)")
    parser.addini("ranks_timeout", "time limit of a test on ranks, in seconds (default 60)")
    parser.addini("ranks_marker", "whose the markers ranks and virtual_gpus are: phalanx or project")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Make sure that ranks can be forked from this process, before any test module is imported."""
    note_ini_markers(early_config)
    if count_device_files():
        from phalanx.testing.real_gpus import keep_forkable  # which no machine without GPUs needs

        keep_forkable()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and check the options if there are any."""
    declare_markers(config)
    if any(config.getoption(name) is not None or config.getini(name) for name in _OPTIONS):
        _rank_hooks().check_options(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which markers of phalanx don't work here, because the project has its own of that name."""
    return describe_owners(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End warm ranks."""
    runner = config.stash.get(RUNNER, None)
    if runner is not None:
        runner.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each number of ranks and each kind that a marker names."""
    if find_mark(metafunc.definition, "ranks") is not None:
        with _naming_phalanx():
            _rank_hooks().make_tests(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let fixtures of other plugins override ours of the same name, as those of a conftest do."""
    manager: Any = session._fixturemanager

    def is_ours(definition: Any) -> bool:
        return getattr(definition.func, "__module__", "") == fixtures.__name__

    for name in _FIXTURES:
        # pytest keeps overriding fixtures last; since 9.2 it keeps them by node, and first.
        getattr(manager, "_arg2fixturedefs", {}).get(name, []).sort(key=is_ours, reverse=True)
        for definitions in getattr(manager, "_arg2node2fixturedefs", {}).get(name, {}).values():
            definitions.sort(key=is_ours)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Find out whether a test runs on ranks, and refuse it if it can't."""
    marks = (find_mark(item, "ranks"), find_mark(item, "virtual_gpus"))
    if marks != (None, None) or asks_for_virtual_gpus(item) or find_unclear_marks(item):
        with _naming_phalanx():
            _rank_hooks().prepare(item)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Leave fixtures that belong to ranks for the ranks."""
    if isinstance(request.node, pytest.Function) and DEFERRED in request.node.stash:
        return _rank_hooks().postpone(fixturedef, request)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the test on its ranks."""
    return _rank_hooks().run_on_ranks(pyfuncitem) if DEFERRED in pyfuncitem.stash else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what happened on which rank."""
    report = yield
    if call.when == "call" and VERDICT in item.stash:
        _rank_hooks().show_ranks(item, call, report)
    return report


def _rank_hooks() -> Any:
    """Import what tests on ranks need."""
    with _naming_phalanx():
        from phalanx.testing import rank_hooks  # half of phalanx: a session without tests on ranks does without

    return rank_hooks


@contextmanager
def _naming_phalanx() -> Generator[None]:
    """Add to an error that comes from phalanx, and not from a test, how to switch the plugin off."""
    try:
        yield
    except pytest.UsageError:
        raise  # it says so itself
    except Exception as error:
        if SWITCH_OFF not in getattr(error, "__notes__", ()):
            error.add_note(SWITCH_OFF)
        raise

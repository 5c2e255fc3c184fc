from __future__ import annotations

import faulthandler
import gc
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from phalanx.testing.session_plans import plan_of
from tests import battery, leftovers

pytest_plugins = ["pytester"]

_LONGEST_TEST_S = 600  # the compiler may need minutes on a busy machine
_NUM_FOLDERS_SHOWN = 12
_BATTERY = Path(__file__).parent / "contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("battery", "the tests of tests/contract")
    options.addoption("--battery-device", choices=battery.DEVICES, default="cpu", help="where their tensors are")
    options.addoption("--failing-calls", choices=("some", "all"), default="some", help="of tests/system_calls")
    options.addoption("--over-hosts", choices=("some", "all"), default="some", help="of the tests over several hosts")
    options.addoption("--battery-ranks", default="2,4,8", metavar="N,N", help="numbers of ranks on a device")
    stress = parser.getgroup("stress", "the tests of tests/stress")
    stress.addoption("--whole-stress", action="store_true", help="run them at full size: minutes instead of seconds")


def pytest_configure(config: pytest.Config) -> None:
    _answer_interrupts()
    gc.disable()  # until all tests are collected: what they import stays
    config.addinivalue_line("markers", "many_cases: every check runs it on ranks that are threads only")
    config.addinivalue_line("markers", "host_memory(reason): has no meaning with tensors on a device")
    battery.choose(config.getoption("--battery-device"), config.getoption("--battery-ranks"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which folders took longest, so that a slow one is noticed."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[str(Path(report.location[0]).parent)] += report.duration
    if len(seconds) < 2:
        return
    terminalreporter.write_sep("=", "slowest folders")
    for folder, spent_s in sorted(seconds.items(), key=lambda item: -item[1])[:_NUM_FOLDERS_SHOWN]:
        terminalreporter.write_line(f"{spent_s:7.1f} s  {folder}")


def _answer_interrupts() -> None:
    # A shell script starts `make test &` with these signals ignored, and nohup the last one; every process that a test
    # starts inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test on several numbers of ranks, leave one of each kind in every check: few processes, many threads.

    A test of very many cases has threads alone there. On a device the numbers are chosen on the command line.
    """
    if not battery.chosen().is_on_host:
        _put_on_device(config, items)
        return
    for item in items:
        marker = item.get_closest_marker("ranks")
        sizes = marker.args[0] if marker is not None else 0
        if not isinstance(sizes, int) and not _is_in_every_check(item, sizes):
            item.add_marker(pytest.mark.slow)


def _put_on_device(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = {item for item in items if _BATTERY not in item.path.parents or battery.is_left_out(item)}
    config.hook.pytest_deselected(items=list(others))
    # Processes first: this process can't be forked for them once its threads have used the GPU.
    items[:] = sorted((item for item in items if item not in others), key=battery.has_threads)
    for item in items:
        reason = battery.reason_to_skip(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif isinstance(item, pytest.Function):
            item.obj = battery.on_device(item.obj)


def _is_in_every_check(item: pytest.Item, sizes: Sequence[int]) -> bool:
    plan = plan_of(item)
    assert plan is not None
    if plan.kind == "thread":
        return plan.num_ranks == max((size for size in sizes if size <= 4), default=8)
    few = min((size for size in sizes if size > 1), default=1)
    return plan.num_ranks == few < 4 and item.get_closest_marker("many_cases") is None


def pytest_collection_finish() -> None:
    """Leave imports and collected tests out of every search for garbage; there are two for each module."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _own_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let failing jobs write their flight records here: the user's own folder keeps only the newest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
        yield


@pytest.fixture(autouse=True)
def _never_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the whole run with every thread's traceback rather than wait for ever."""
    is_whole = request.config.getoption("--whole-stress")
    faulthandler.dump_traceback_later(_LONGEST_TEST_S * (10 if is_whole else 1), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def _module_or_session(fixture_name: str, config: pytest.Config) -> Literal["module", "session"]:
    # What serves a module is new to processes that stay between tests: they would be replaced with each.
    del fixture_name, config
    return "module" if battery.chosen().is_on_host else "session"


@pytest.fixture(autouse=True, scope=_module_or_session)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each module: no rank, no segment, no file in /dev/shm, no descriptor more than before."""
    gc.collect()
    before = len(leftovers.open_descriptors())
    yield
    gc.collect()
    if request.session.testsfailed:
        return  # the traceback of a rank that was a thread keeps its group
    assert not leftovers.named_memory()
    if not battery.chosen().is_on_host:
        return  # ranks stay between tests, and a GPU's driver has files of its own
    # A rank that is a thread may still be ending, with the last references to its groups.
    assert leftovers.wait_until(lambda: gc.collect() >= 0 and not leftovers.group_memory(), 20), (
        leftovers.group_memory()
    )
    assert leftovers.wait_until(lambda: not leftovers.rank_processes()), leftovers.rank_processes()
    # The first spawn starts the process that ranks are forked from: its socket stays. The workers of a rank that was a
    # thread may still be ending.
    assert leftovers.wait_until(lambda: gc.collect() >= 0 and len(leftovers.open_descriptors()) <= before + 1, 20), (
        leftovers.open_descriptors()
    )

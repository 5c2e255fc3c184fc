from __future__ import annotations

import faulthandler
import gc
from collections.abc import Iterator, Sequence

import pytest

from phalanx.testing.plugin import plan_of
from tests import leftovers

pytest_plugins = ["pytester"]

_LONGEST_TEST_S = 240


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "many_cases: every check runs it on ranks that are threads only")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test on several numbers of ranks, leave one of each kind in every check: few processes, many threads.

    A test of very many cases has threads alone there.
    """
    for item in items:
        marker = item.get_closest_marker("ranks")
        sizes = marker.args[0] if marker is not None else 0
        if not isinstance(sizes, int) and not _is_in_every_check(item, sizes):
            item.add_marker(pytest.mark.slow)


def _is_in_every_check(item: pytest.Item, sizes: Sequence[int]) -> bool:
    plan = plan_of(item)
    assert plan is not None
    if plan.kind == "thread":
        return plan.num_ranks == max((size for size in sizes if size <= 4), default=8)
    few = min((size for size in sizes if size > 1), default=1)
    return plan.num_ranks == few < 4 and item.get_closest_marker("many_cases") is None


@pytest.fixture(autouse=True)
def _never_hang() -> Iterator[None]:
    """End the whole run with every thread's traceback rather than wait for ever."""
    faulthandler.dump_traceback_later(_LONGEST_TEST_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each module: no rank, no segment, no file in /dev/shm, no descriptor more than before."""
    gc.collect()
    before = len(leftovers.open_descriptors())
    yield
    gc.collect()
    if request.session.testsfailed:
        return  # the traceback of a rank that was a thread keeps its group
    assert leftovers.wait_until(lambda: not leftovers.rank_processes()), leftovers.rank_processes()
    assert not leftovers.group_memory()
    assert not leftovers.named_memory()
    # The first spawn starts the process that ranks are forked from: its socket stays.
    assert len(leftovers.open_descriptors()) <= before + 1, leftovers.open_descriptors()

from __future__ import annotations

import faulthandler
import gc
from collections.abc import Iterator

import pytest

from tests import leftovers

_LONGEST_TEST_S = 240


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

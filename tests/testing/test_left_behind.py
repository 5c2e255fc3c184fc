"""Threads and processes that a test did not end: named in a warning, and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import leftovers
from tests.testing.inner_runs import InnerRuns

_LEAVING = """
import subprocess

@pytest.mark.ranks(2, kind=["process", "pool"])
def test_process(rank):
    if rank == 1:
        kept.append(subprocess.Popen(["sleep", "50"]))
        note(kept[-1].pid)

kept = []

@pytest.mark.ranks(2, kind=["process", "pool"])
def test_thread(rank):
    if rank == 0:
        threading.Thread(target=time.sleep, args=(50,), name="forgotten", daemon=True).start()

@pytest.mark.ranks(2, kind=["process", "pool"])
def test_tidy(rank):
    threading.Thread(target=print, name="joined").start()
    [thread.join() for thread in threading.enumerate() if thread.name == "joined"]
    subprocess.run(["true"])
"""


@pytest.mark.slow
def test_a_thread_or_process_left_behind_is_named_and_ended(inner: InnerRuns) -> None:
    result = inner.run(_LEAVING)
    result.assert_outcomes(passed=6, warnings=4)
    told = "it was ended. Join threads and wait for processes before the test ends"
    result.stdout.fnmatch_lines_random(
        [
            f"*RanksWarning: rank 1 left behind: process * (sleep 50); {told}",
            f"*RanksWarning: rank 0 left behind: thread 'forgotten'; {told}",
        ]
    )
    pids = inner.notes()
    assert len(pids) == 2
    assert leftovers.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_warning_of_something_left_behind_can_be_an_error(inner: InnerRuns) -> None:
    result = inner.run(_LEAVING, "-W", "error::phalanx.testing.plugin.RanksWarning", "-k", "test_thread and process-2")
    result.assert_outcomes(failed=1, deselected=5)
    result.stdout.fnmatch_lines(["rank 0 left behind: thread 'forgotten'*"])


@pytest.mark.slow
def test_a_pool_replaces_ranks_that_left_something_behind(inner: InnerRuns) -> None:
    result = inner.run(
        """
        pytestmark = pytest.mark.ranks(2, kind="pool")

        def test_1(rank):
            note("first", os.getpid())
            threading.Thread(target=time.sleep, args=(50,), daemon=True).start()

        def test_2(rank):
            note("second", os.getpid())
            assert threading.active_count() == 1
        """
    )
    result.assert_outcomes(passed=2, warnings=2)
    pids = [line.split()[1] for line in inner.notes()]
    assert len(set(pids)) == 4


def test_a_test_that_forks_is_reported_once(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_fork(group, rank):
            pid = os.fork()
            if pid == 0:
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            group.barrier()
            note("parent", rank)

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_after(group): group.barrier()
        """
    )
    result.assert_outcomes(passed=4)
    assert inner.notes() == ["parent 0", "parent 0", "parent 1", "parent 1"]


@pytest.mark.slow
def test_a_forked_copy_that_runs_on_into_the_plugin_does_no_harm(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind=["process", "pool"], timeout=20)
        def test_fork(group, rank):
            group.barrier()
            pid = os.fork()
            note("parent" if pid else "child", rank)
            if pid: os.waitpid(pid, 0)

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_after(group, rank):
            group.barrier()
            assert rank == 5
        """
    )
    result.assert_outcomes(passed=2, failed=2)
    assert inner.notes() == sorted(["child 0", "child 1", "parent 0", "parent 1"] * 2)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2: AssertionError*", "ranks 0-1 of 2: AssertionError*"])


@pytest.mark.slow
def test_multiprocessing_in_a_test_works(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import multiprocessing

        def square(number): return number * number

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_pool(rank):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(square, [rank, 3]) == [rank * rank, 9]
        """
    )
    result.assert_outcomes(passed=2)

from __future__ import annotations

from pathlib import Path

import pytest

from tests import leftovers
from tests.testing.inner_runs import InnerRuns

pytest.importorskip("xdist", reason="pytest-xdist is not installed")


@pytest.mark.slow
def test_tests_on_ranks_run_side_by_side_in_workers_and_survive_one(inner: InnerRuns) -> None:
    result = inner.run_apart(
        """
        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(8))
        def test_process_group(process_group, number):
            total = torch.full((10,), float(number))
            dist.all_reduce(total)
            assert total[0] == 2 * number
            note("worker", os.environ["PYTEST_XDIST_WORKER"])

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(8))
        def test_environment(rank, number):
            dist.init_process_group("gloo", init_method="env://")
            total = torch.full((10,), float(number))
            dist.all_reduce(total)
            assert total[0] == 2 * number
            dist.destroy_process_group()

        @pytest.mark.ranks(2, kind=["thread", "pool"])
        @pytest.mark.parametrize("number", range(4))
        def test_other_kinds(group, number): group.barrier()

        @pytest.mark.ranks(3)
        def test_failure(group, rank):
            print("said by", rank)
            assert rank != 1
            group.barrier()

        @pytest.mark.ranks(2)
        def test_death(group, rank):
            if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
            group.barrier()

        @pytest.mark.ranks(2)
        def test_parts(subtests, rank):
            with subtests.test("part"): assert rank == 0

        @pytest.mark.ranks(2)
        def test_kill_worker(group, rank):
            note("pid", os.getpid())
            group.barrier()
            if rank == 0: os.kill(os.getppid(), signal.SIGKILL)
            while True: time.sleep(0.01)
        """,
        "-n2",
        needs=("xdist",),
    )
    result.assert_outcomes(passed=24, failed=5)
    assert {"worker gw0", "worker gw1"} <= set(inner.notes())
    result.stdout.fnmatch_lines_random(
        [
            "rank 1 of 3: AssertionError: assert 1 != 1 (test_inner.py:*)",
            "*Captured stdout*rank 2*",
            "said by 2",
            "rank 1 of 2: was killed by SIGKILL (signal 9)*",
            "SUBFAILED*test_parts - rank 1: *",
            "*worker 'gw*' crashed while running 'test_inner.py::test_kill_worker'*",
        ]
    )
    pids = [int(line.split()[1]) for line in inner.notes() if line.startswith("pid")]
    assert len(pids) == 2
    assert leftovers.wait_until(lambda: not any(_is_running(pid) for pid in pids))
    assert not leftovers.named_memory()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

"""pytest-timeout, pytest-cov and pytest-randomly with tests on ranks."""

from __future__ import annotations

import json

import pytest

from tests.testing.inner_runs import InnerRuns


@pytest.mark.slow
def test_pytest_timeout_ends_a_test_and_shows_its_ranks(inner: InnerRuns) -> None:
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind=["process", "pool"])
        @pytest.mark.timeout(0.5)
        def test_slow(group, rank):
            note(os.getpid())
            if rank == 1:
                while True: time.sleep(0.01)
            group.barrier()

        @pytest.mark.ranks(2)
        @pytest.mark.timeout(20)
        def test_after(group): group.barrier()
        """,
        needs=("timeout",),
    )
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        ["rank 1 of 2: not done after *", "rank 0 of 2: not done after *waiting in barrier #1*"]
    )
    result.stdout.fnmatch_lines(["*while True: time.sleep(0.01)"])
    for pid in inner.notes():
        with pytest.raises(FileNotFoundError):
            open(f"/proc/{pid}/stat").close()


@pytest.mark.slow
def test_lines_that_only_some_rank_runs_are_covered(inner: InnerRuns) -> None:
    pytest.importorskip("pytest_cov", reason="pytest-cov is not installed")
    module = inner.pytester.makepyfile(
        measured="""
        def work(kind, rank):
            if kind == "process":
                if rank == 1:
                    return "process 1"
                return "process 0"
            elif kind == "pool":
                if rank == 1:
                    return "pool 1"
                return "pool 0"
            elif kind == "thread":
                if rank == 1:
                    return "thread 1"
                return "thread 0"
            return "never"
        """
    )
    result = inner.run_apart(
        """
        from measured import work

        @pytest.mark.ranks(2, kind="process")
        def test_process(rank): assert work("process", rank) == f"process {rank}"

        @pytest.mark.ranks(2, kind="pool")
        @pytest.mark.parametrize("again", [0, 1])
        def test_pool(rank, again): assert work("pool", rank) == f"pool {rank}"

        @pytest.mark.ranks(2, kind="thread")
        def test_thread(rank): assert work("thread", rank) == f"thread {rank}"
        """,
        "--cov=measured",
        "--cov-report=json:coverage.json",
        needs=("cov",),
    )
    result.assert_outcomes(passed=4)
    found = json.loads((inner.pytester.path / "coverage.json").read_text())["files"]["measured.py"]
    lines = module.read_text().splitlines()
    missing = [lines[number - 1].strip() for number in found["missing_lines"]]
    assert missing == ['return "never"']
    left = [path.name for path in inner.pytester.path.glob(".coverage*")]
    assert left == [".coverage"]


@pytest.mark.slow
def test_pytest_randomly_seeds_every_rank_alike(inner: InnerRuns, kind: str) -> None:
    pytest.importorskip("pytest_randomly", reason="pytest-randomly is not installed")
    result = inner.run(
        """
        import random

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", range(4))
        def test_random(rank, number): note(number, random.random())
        """,
        f"--ranks-kind={kind}",
        "--randomly-seed=5",
        needs=("randomly",),
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["Using --randomly-seed=5"])
    notes = inner.notes()
    assert len(notes) == 8
    if kind != "thread":  # threads draw from one generator
        assert len(set(notes)) == 4

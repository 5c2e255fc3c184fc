"""A rank that fails or dies: the others are freed at once, the test says how, and the next test is fine."""

from __future__ import annotations

import time

import pytest

from tests.testing.inner_runs import InnerRuns


@pytest.mark.slow
def test_a_failing_rank_frees_the_others_at_once(inner: InnerRuns, kind: str) -> None:
    start = time.monotonic()
    result = inner.run(
        """
        @pytest.mark.ranks(4, timeout=500)
        def test_barrier(group, rank):
            if rank == 2: raise ValueError("gone")
            group.barrier()

        @pytest.mark.ranks(2, timeout=500)
        def test_recv(group, rank):
            group.barrier()
            if rank == 1: raise ValueError("gone")
            group.recv(torch.ones(1), 1)

        @pytest.mark.ranks(2, timeout=500)
        def test_computing(group, rank):
            group.barrier()
            if rank == 1: raise ValueError("gone")
            while True: time.sleep(0.01)
        """,
        f"--ranks-kind={kind}",
    )
    assert time.monotonic() - start < 400
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "rank 2 of 4: ValueError: gone*",
            "rank*: waiting in barrier*",
            "rank 1 of 2: ValueError: gone*",
            "rank 0: waiting in recv*",
            "rank 1 of 2: ValueError: gone*",
            "rank 0: at *test_inner.py:*",
        ]
    )


_ENDS = {
    "segfault": ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV (signal 11)"),
    "exit code": ("os._exit(7)", "ended with exit code 7"),
    "exit code 0": ("os._exit(0)", "ended with exit code 0"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL (signal 9)"),
    "abort": ("os.abort()", "was killed by SIGABRT (signal 6)"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(50)", "was killed by SIGTERM (signal 15)"),
}


@pytest.mark.parametrize("kind", ["process", "pool"])
@pytest.mark.slow
def test_a_rank_that_dies_fails_its_test_alone_and_says_how(inner: InnerRuns, kind: str) -> None:
    tests = [
        f"""
        @pytest.mark.ranks(3)
        def test_{number}(group, rank):
            print("last words")
            if rank == 1:
                {code}
            group.barrier()

        @pytest.mark.ranks(3)
        def test_after_{number}(group):
            group.barrier()
        """
        for number, (code, _) in enumerate(_ENDS.values())
    ]
    start = time.monotonic()
    result = inner.run("".join(tests), f"--ranks-kind={kind}")
    assert time.monotonic() - start < 300
    result.assert_outcomes(failed=len(_ENDS), passed=len(_ENDS))
    for _, told in _ENDS.values():
        result.stdout.fnmatch_lines([f"rank 1 of 3: {told}*", "rank*: waiting in barrier*", "last words"])


def test_a_crash_shows_where_it_happened(inner: InnerRuns) -> None:
    result = inner.run(
        """
        def read_null():
            import ctypes
            ctypes.string_at(0)

        @pytest.mark.ranks(2)
        def test_crash(group, rank):
            if rank == 1: read_null()
            group.barrier()
        """
    )
    result.stdout.fnmatch_lines(["*Segmentation fault", "*, in test_crash", "*, in read_null", "*ctypes.string_at(0)"])


@pytest.mark.parametrize("kind", ["process", "pool"])
@pytest.mark.slow
def test_a_rank_that_exits_during_teardown_fails_its_test_alone(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def bad_teardown(rank):
            yield
            if rank == 1: os._exit(7)

        @pytest.mark.ranks(2)
        def test_bad(bad_teardown, group): group.barrier()

        @pytest.mark.ranks(2)
        def test_after(group): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: ended with exit code 7*"])


def test_a_rank_that_crashes_after_the_test_fails_it(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import atexit

        @pytest.mark.ranks(2)
        def test_exit(rank):
            if rank == 1: atexit.register(os._exit, 9)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: ended with exit code 9 after the test had ended*"])


def test_sys_exit_in_a_test_is_a_failure_of_that_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_exit(group, rank):
            if rank == 1: sys.exit(3)
            group.barrier()

        @pytest.mark.ranks(2)
        def test_after(group): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: SystemExit: 3*", "rank 0: waiting in barrier*"])


def test_all_ranks_dying_alike_is_one_finding(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(3)
        def test_all_die(rank): os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAILED*::test_all_die - ranks 0-2*: was killed by SIGKILL (signal 9)"])

"""No failure may pass for something else, whatever other ranks, marks and subtests do at the same time."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def test_a_test_that_no_rank_survives_fails(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from phalanx.testing import faults

        @pytest.mark.ranks(2)
        def test_lost(group):
            faults.kill(rank=0, at=1)
            faults.kill(rank=1, at=1)
            group.barrier()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*with no rank left, nobody can say whether it passed*"])


@pytest.mark.slow
def test_a_rank_that_is_ended_after_the_grace_does_not_hide_the_others_error(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from phalanx.testing import faults

        @pytest.mark.ranks(3)
        def test_grace(group, rank):
            faults.kill(rank=2, at=1)
            if rank == 1:
                threading.Event().wait(30)
            group.barrier()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank 0 of 3: PeerDiedError: *", "rank 1: at *", "rank 2: lost to a fault that the test asked for"]
    )


def test_skipif_comes_before_what_the_mark_cannot_have(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.skipif(True, reason="no GPUs here")
        @pytest.mark.ranks(64, device="cuda")
        def test_gpus(device): pass
        """
    )
    result.assert_outcomes(skipped=1)


def test_subtests_with_the_same_name_are_all_counted(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_steps(subtests, rank):
            for number in range(3):
                with subtests.test("step"):
                    assert number != 0
        """
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*contains 1 failed subtest*"])


def test_a_teardown_that_fails_on_ranks_is_not_covered_by_a_skip(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def leaky(rank):
            yield
            raise OSError("still open")

        @pytest.mark.ranks(2)
        def test_skipped(leaky): pytest.skip("not today")
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*OSError: still open*"])


def test_an_expected_exception_on_one_rank_does_not_cover_another_on_the_next(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        @pytest.mark.xfail(raises=ValueError)
        def test_two_reasons(rank):
            if rank == 0:
                raise ValueError("expected")
            raise KeyError("unexpected")
        """
    )
    result.assert_outcomes(failed=1)


def test_the_skip_of_one_rank_is_named_when_it_leaves_the_others_waiting(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_skip(group, rank):
            if rank == 0:
                pytest.skip("only here")
            group.barrier()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 0 of 2: skipped (only here) while rank 1 ran the test*"])


def test_faults_that_do_nothing_are_told(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from phalanx.testing import faults

        @pytest.mark.ranks(2)
        def test_too_late(group):
            faults.kill(rank=0, at=10)
            group.barrier()

        @pytest.mark.ranks(2, backend="gloo")
        def test_over_gloo(group):
            faults.kill(rank=0, at=1)
        """
    )
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "*a fault took no effect: this rank did not reach operation 10*",
            "*faults work only in phalanx's own groups*",
        ]
    )

"""Assertions over all ranks when some of them are lost, or do not take part."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_KINDS = ("process", "thread", "pool")


@pytest.mark.parametrize("kind", _KINDS)
def test_survivors_of_a_fault_can_assert_what_they_have_in_common(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import phalanx
        from phalanx.testing import assert_ranks_raise, assert_same_on_ranks, expect_on, faults

        @pytest.mark.ranks(3, timeout=20)
        def test_first_use_after_the_loss(group, rank):
            faults.kill(rank=1, at="barrier")
            with pytest.raises(phalanx.PeerDiedError):
                group.barrier()
            assert_same_on_ranks(group.shrink().size)
            expect_on(2, rank, 2)

        @pytest.mark.ranks(3, timeout=20)
        def test_used_before_and_after(group, rank):
            assert_same_on_ranks("before")
            faults.stall(rank=0, at="barrier")
            with pytest.raises(phalanx.OperationTimeoutError):
                group.barrier(timeout_s=0.2)
            with assert_ranks_raise(KeyError, on=[2]):
                if rank == 2:
                    raise KeyError("only here")
            assert_same_on_ranks(rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: the value differs between ranks*", "*rank 1: 1*", "*rank 2: 2*"])


@pytest.mark.parametrize("kind", _KINDS)
def test_a_rank_that_makes_no_assertion_is_named_at_once(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        from phalanx.testing import assert_same_on_ranks

        @pytest.mark.ranks(3, timeout=500)
        def test_two_of_three(rank):
            if rank != 2:
                assert_same_on_ranks(1)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 2 finished the test without this assertion*every rank must make it*"])
    assert result.duration < 200


def test_values_that_cannot_be_compared_are_refused_and_modules_are_compared_by_their_state(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import torch
        from phalanx.testing import assert_same_on_ranks

        class Plain: pass

        @pytest.mark.ranks(2)
        def test_same():
            torch.manual_seed(0)
            assert_same_on_ranks(torch.nn.Linear(2, 2))
            assert_same_on_ranks(float("nan"))
            with pytest.raises(ValueError, match="it has no __eq__; give its fields"):
                assert_same_on_ranks(Plain())
            with pytest.raises(ValueError, match=r"give list\\(...\\) of it"):
                assert_same_on_ranks(number for number in range(3))

        @pytest.mark.ranks(2)
        def test_different(rank):
            torch.manual_seed(rank)
            assert_same_on_ranks(torch.nn.Linear(2, 2), "the model")
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: the model differs between ranks*"])

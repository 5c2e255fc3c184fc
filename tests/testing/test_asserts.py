"""Assertions about all ranks at once: the words when they fail are the same on every rank."""

from __future__ import annotations

import pytest
import torch

from phalanx.errors import UsageError
from phalanx.testing import assert_ranks_raise, assert_same_on_ranks, expect_on
from tests.testing.inner_runs import InnerRuns

_KINDS = ["process", "thread"]


@pytest.mark.ranks(3, kind=_KINDS)
def test_equal_values_are_the_same(rank: int) -> None:
    assert_same_on_ranks(torch.arange(4))
    assert_same_on_ranks({"a": [1, 2], "t": torch.ones(2)})
    assert_same_on_ranks([torch.tensor(float("nan"))])
    assert_same_on_ranks("text", "the text")
    assert_same_on_ranks(None)


@pytest.mark.ranks(3, kind=_KINDS)
def test_a_different_tensor_is_described_with_ranks_and_the_first_element(rank: int) -> None:
    mine = torch.arange(4.0)
    if rank == 1:
        mine[2] = 9
    with pytest.raises(AssertionError) as caught:
        assert_same_on_ranks(mine, "the weights")
    assert str(caught.value).splitlines() == [
        "the weights differs between ranks",
        "  ranks 0, 2: tensor([0., 1., 2., 3.])",
        "  rank 1: tensor([0., 1., 9., 3.])",
        "  1 of 4 elements differ, first at [2]: 2.0 on rank 0, 9.0 on rank 1",
    ]


@pytest.mark.ranks(2, kind=_KINDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"a": 2}),
        (1, None),
    ],
    ids=["sign of zero", "shape", "dtype", "class", "dict", "None"],
)
def test_what_differs_in_any_way_is_not_the_same(rank: int, first: object, second: object) -> None:
    with pytest.raises(AssertionError, match=r"^the value differs between ranks\n  rank 0: .*\n  rank 1: "):
        assert_same_on_ranks(second if rank else first)


@pytest.mark.ranks(3, kind=_KINDS)
def test_an_exception_on_the_named_ranks_is_expected(rank: int) -> None:
    with assert_ranks_raise(ValueError, match="my mistake", on=[0, 2]):
        if rank != 1:
            raise ValueError("my mistake")
    with assert_ranks_raise((KeyError, OSError)):
        raise KeyError("everywhere") if rank else OSError("everywhere")
    with assert_ranks_raise(ValueError, on=1):
        if rank == 1:
            raise ValueError


@pytest.mark.ranks(3, kind=_KINDS)
def test_an_exception_that_is_missing_or_unexpected_is_told_on_every_rank(rank: int) -> None:
    with pytest.raises(AssertionError) as caught:
        _expect_a_right_error_of_ranks_0_and_1(rank)
    assert str(caught.value).splitlines() == [
        "expected ValueError matching 'right' on ranks 0-1 and nowhere else",
        "  ranks 0, 2 raised ValueError: wrong",
        "  rank 1 raised nothing",
    ]
    assert (caught.value.__cause__ is None) == (rank == 1)


def _expect_a_right_error_of_ranks_0_and_1(rank: int) -> None:
    with assert_ranks_raise(ValueError, match="right", on=[0, 1]):
        if rank != 1:
            raise ValueError("wrong")


@pytest.mark.ranks(3, kind=_KINDS)
def test_a_value_is_checked_on_the_named_rank_and_fails_everywhere(rank: int) -> None:
    expect_on(2, rank, 2)
    expect_on([0, 1], rank < 2)
    expect_on(1, torch.tensor([1.0, 2.0]) * rank, torch.tensor([1.0, 2.0]))
    with pytest.raises(AssertionError, match=r"^rank 1: got 1, expected 5$"):
        expect_on(1, rank, 5)
    with pytest.raises(AssertionError, match=r"^rank 0: got 0, expected 5; rank 2: got 2, expected 5$"):
        expect_on([0, 2], rank, 5)


@pytest.mark.ranks(2, kind=_KINDS)
def test_ranks_that_do_not_exist_are_refused(rank: int) -> None:
    with pytest.raises(UsageError, match="rank 7 is outside this world of 2; give 0 to 1"):
        expect_on(7, 1)
    with pytest.raises(UsageError, match="rank -1 is outside this world of 2"):
        with assert_ranks_raise(ValueError, on=[-1]):
            pass


def test_outside_ranks_they_are_refused() -> None:
    with pytest.raises(UsageError, match="this assertion is for ranks"):
        assert_same_on_ranks(1)
    with pytest.raises(UsageError, match="this assertion is for ranks"):
        expect_on(0, 1)
    with pytest.raises(UsageError, match="this assertion is for ranks"):
        with assert_ranks_raise(ValueError):
            pass


def test_a_failed_assertion_about_ranks_is_one_failure_of_all(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        from phalanx.testing import assert_same_on_ranks, expect_on

        @pytest.mark.ranks(3)
        def test_same(group, rank):
            assert_same_on_ranks(min(rank, 1), "the step")
            group.barrier()

        @pytest.mark.ranks(3)
        def test_expect(rank): expect_on(1, rank, 4)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "ranks 0-2 of 3: AssertionError: the step differs between ranks (test_inner.py:*)",
            '>*assert_same_on_ranks(min(rank, 1), "the step")',
            "E*rank 0: 0",
            "E*ranks 1-2: 1",
            "ranks 0-2 of 3: AssertionError: rank 1: got 1, expected 4 (test_inner.py:*)",
        ]
    )


@pytest.mark.ranks(3)
def test_they_work_after_the_group_of_the_test_is_broken(rank: int) -> None:
    import phalanx

    group = phalanx.connect()
    with assert_ranks_raise(phalanx.PhalanxError, on=[0, 1]):
        if rank != 2:
            group.barrier(timeout_s=0.2)
    assert_same_on_ranks("still here")

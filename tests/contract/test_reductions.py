"""The ways to name a reduction in all operations that reduce: a ReduceOp, a word, or an object of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phalanx import Group, ReduceOp
from phalanx.errors import PeerFailedError, UsageError
from phalanx.reductions import as_reduce_op
from tests.checks import same
from tests.reference import reduced
from tests.worlds import every_world, worlds

_Call = Callable[[Group, torch.Tensor, Any], torch.Tensor]


def _all_reduce(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    group.all_reduce(tensor, op=op)
    return tensor


def _all_reduce_coalesced(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    group.all_reduce_coalesced([tensor], op)
    return tensor


def _coalescing(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    with group.coalescing():
        group.all_reduce(tensor, op)
    return tensor


def _reduce(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    group.reduce(tensor, 0, op)
    group.broadcast(tensor, 0)
    return tensor


def _reduce_scatter(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    output = torch.empty_like(tensor)
    group.reduce_scatter(output, [tensor] * group.size, op)
    return output


def _reduce_scatter_single(group: Group, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    output = torch.empty_like(tensor)
    group.reduce_scatter_single(output, torch.cat([tensor] * group.size), op=op)
    return output


CALLS = [_all_reduce, _all_reduce_coalesced, _coalescing, _reduce, _reduce_scatter, _reduce_scatter_single]


def _check(group: Group, call: _Call, op: ReduceOp) -> None:
    inputs = [torch.tensor([1, 6, 12]) + rank for rank in range(group.size)]
    if op is ReduceOp.AVG:
        inputs = [tensor.float() for tensor in inputs]
    expected = reduced(inputs, op)
    theirs = getattr(dist.ReduceOp, op.name)
    for given in (op.name.lower(), theirs, dist.ReduceOp(theirs)):
        same(call(group, inputs[group.rank].clone(), given), expected, f"{call.__name__} with {given}")


@every_world
def test_every_operation_that_reduces_takes_the_words_and_the_objects_of_torch(group: Group) -> None:
    for call in CALLS:
        for op in ReduceOp:
            _check(group, call, op)


@every_world
def test_a_factor_may_be_given_as_torch_gives_it(group: Group) -> None:
    tensor = torch.ones(3)
    group.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))  # type: ignore[attr-defined]
    same(tensor, torch.full((3,), group.size / 2))


@pytest.mark.ranks(2, backend="gloo", timeout=30)
@pytest.mark.slow
def test_groups_over_gloo_take_the_same(group: Group) -> None:
    for call in (_all_reduce, _all_reduce_coalesced, _reduce):
        for op in set(ReduceOp) - {ReduceOp.AVG}:  # which Gloo has not
            _check(group, call, op)
    for call in (_all_reduce, _reduce_scatter, _reduce_scatter_single):
        with pytest.raises(UsageError, match="there is no reduction 'mean'"):
            call(group, torch.ones(1), "mean")


@worlds(2)
def test_ranks_in_one_operation_may_name_its_reduction_differently(group: Group) -> None:
    tensor = torch.tensor([float(group.rank)])
    group.all_reduce(tensor, "max" if group.rank else dist.ReduceOp.MAX)
    assert tensor.item() == 1
    other = torch.tensor([3.0])
    with group.coalescing():
        group.all_reduce(tensor, "sum")
        group.all_reduce(other, "sum" if group.rank else ReduceOp.SUM)
    assert (tensor.item(), other.item()) == (2, 6)


@worlds(2)
@pytest.mark.parametrize("call", CALLS)
def test_a_word_that_is_no_reduction_is_refused_and_peers_are_told(group: Group, call: _Call) -> None:
    tensor = torch.ones(2)
    if group.rank:
        with pytest.raises(UsageError, match=r"there is no reduction 'mean'; give .*\"avg\"") as mine:
            call(group, tensor, "mean")
        assert mine.value.rank == 1
    else:
        with pytest.raises(PeerFailedError, match="there is no reduction 'mean'"):
            call(group, tensor, "avg")


@pytest.mark.parametrize("op", ["SUM", "", "mean", 8, -1, None, 1.5, dist.ReduceOp, ReduceOp])
def test_what_names_no_reduction_is_refused(op: Any) -> None:
    with pytest.raises(UsageError, match="there is no reduction"):
        as_reduce_op(op)

"""Sparse tensors to reduce, with the expected results."""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor

_SHAPES = ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))  # sparse and dense dimensions


def simple_sparse_reduce_tests(
    rank: int, world_size: int, num_inputs: int = 1
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return pairs of a rank's inputs and the sums over all ranks, one pair per number of dimensions."""
    num_parts = num_inputs * world_size
    cases = []
    for sparse_dims, dense_dims in _SHAPES:
        parts = [_part(number, num_parts, sparse_dims, dense_dims) for number in range(num_parts)]
        total = functools.reduce(operator.add, parts)
        own = parts[num_inputs * rank : num_inputs * (rank + 1)]
        cases.append((own, [total] * num_inputs))
    return cases


def _part(number: int, num_parts: int, sparse_dims: int, dense_dims: int) -> Tensor:
    """Return part k, which has k + 1 values in the first rows, so that any two parts overlap."""
    count = number + 1
    indices = torch.zeros(sparse_dims, count, dtype=torch.int64)
    indices[0] = torch.arange(count)
    dense_shape = [2] * dense_dims
    return torch.sparse_coo_tensor(
        indices, torch.ones(count, *dense_shape), [num_parts] * sparse_dims + dense_shape, check_invariants=False
    )

"""all_reduce of sparse tensors: every rank gets the indices of all ranks, and the engine adds up the values at them.

No rank adds up values of others itself: torch does it as the rank has told its processor (torch.set_flush_denormal),
but all ranks must get the same bits.
"""

from __future__ import annotations

import torch

from phalanx.collectives import LocalGroup, ReduceOp, Reduction, Work
from phalanx.errors import UsageError
from phalanx.groups.coalescing import CombinedWork


def all_reduce(
    group: LocalGroup,
    tensors: list[torch.Tensor],
    op: Reduction,
    *,
    timeout_s: float | None = None,
    async_op: bool = False,
) -> Work | None:
    """Sum sparse tensors over all ranks, in place. It always blocks; with `async_op` it returns a Work.

    Raises:
        UsageError: Another reduction than SUM is asked for, or a layout that is not COO.
        MismatchError: Ranks disagree on the shape.
    """
    for tensor in tensors:
        if tensor.layout is not torch.sparse_coo:
            raise group.refuse("all_reduce", f"sparse tensors must have the layout sparse_coo, not {tensor.layout}")
        if op is not ReduceOp.SUM:
            raise group.refuse("all_reduce", f"sparse tensors can only be summed, not {op!r}")
    for tensor in tensors:
        _all_reduce_one(group, tensor, timeout_s)
    return CombinedWork([]) if async_op else None


def _all_reduce_one(group: LocalGroup, tensor: torch.Tensor, timeout_s: float | None) -> None:
    try:
        mine = tensor.detach().coalesce()
    except (RuntimeError, NotImplementedError) as error:  # types that torch can't add up, tensors made for inference
        reason = str(error).partition("\n")[0]
        raise group.refuse("all_gather", f"a sparse tensor that torch can't coalesce: {reason}") from error
    num_entries = torch.zeros(group.size, dtype=torch.int64, device="cpu")
    # Send the shapes too, so that ranks find different shapes before they send any value.
    head = torch.tensor([mine._nnz(), mine.sparse_dim(), *mine.shape], dtype=torch.int64, device="cpu")
    heads = [torch.empty_like(head) for _ in range(group.size)]
    group.all_gather(heads, head, timeout_s=timeout_s)
    for rank, other in enumerate(heads):
        if not torch.equal(other[1:], head[1:]):
            raise UsageError(
                f"all_reduce: ranks disagree on the shape of a sparse tensor\n"
                f"  here     rank {group.rank} has {tuple(mine.shape)}\n"
                f"  differs  rank {rank} has {tuple(other[2:].tolist())}"
            )
        num_entries[rank] = other[0]
    of_each = [mine.indices().new_empty((int(count), mine.sparse_dim())) for count in num_entries]
    group.all_gather(of_each, mine.indices().t().contiguous(), timeout_s=timeout_s)
    indices, places = _united(of_each, mine.shape[: mine.sparse_dim()], group.rank)
    values = mine.values().new_zeros((len(indices), *mine.values().shape[1:]))
    values[places] = mine.values()
    group.all_reduce(values, timeout_s=timeout_s)
    total = torch.sparse_coo_tensor(indices.t(), values, mine.shape, is_coalesced=True, check_invariants=False)
    with torch.no_grad():  # the tensor may require a gradient
        tensor.copy_(total)  # a detached copy would not be written to


def _united(of_each: list[torch.Tensor], shape: torch.Size, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all indices in order, each once, and at which of them this rank's are. A row is an index."""
    rows = torch.cat(of_each)
    numbers = rows.new_zeros(len(rows))
    for dim, length in enumerate(shape):
        numbers = numbers * length + rows[:, dim]
    different, places = numbers.unique(return_inverse=True)
    united = rows.new_empty((len(different), len(shape)))
    united[places] = rows
    return united, places.split([len(each) for each in of_each])[rank]

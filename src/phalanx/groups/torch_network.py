"""TorchGroup: the Group protocol over one of torch's own backends, Gloo, NCCL or MPI.

If a backend can't do something, it raises its own error. Operations that torch lacks, such as merge, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.collectives import AnyReduceOp, PremulSum, ReduceOp, Timeout, as_reduce_op, seconds_of
from phalanx.errors import UsageError
from phalanx.groups.coalescing import CombinedWork

_TORCH_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.AVG: dist.ReduceOp.AVG,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.BAND: dist.ReduceOp.BAND,
    ReduceOp.BOR: dist.ReduceOp.BOR,
    ReduceOp.BXOR: dist.ReduceOp.BXOR,
}


class TorchWork:
    """An asynchronous operation. Satisfies phalanx.collectives.Work."""

    def __init__(self, work: Any, result: Any, timeout_s: Timeout) -> None:
        self._work = work
        self._result = result
        self._timeout_s = timeout_s

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait until the operation is done, no longer than this or than the operation may take.

        Raises:
            RuntimeError: It failed, or took too long.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        if limit is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=seconds_of(limit, 0)))

    def done(self) -> bool:
        """Tell whether it has ended."""
        return bool(self._work.is_completed())

    def exception(self) -> BaseException | None:
        """Return why it failed, or None."""
        error: BaseException | None = self._work.exception()
        return error

    def result(self) -> Any:
        """Wait, and return the tensor or tensors it filled."""
        self.wait()
        return self._result


class TorchGroup:
    """A group of ranks that torch has connected. Satisfies phalanx.collectives.Group."""

    def __init__(self, process_group: Any, *, name: str = "world", timeout_s: float = 600.0) -> None:
        self._group = process_group
        self._name = name
        self._timeout_s = timeout_s
        self._is_closed = False

    def __repr__(self) -> str:
        return f'<TorchGroup "{self._name}" over {dist.get_backend(self._group)} rank {self.rank} of {self.size}>'

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return int(dist.get_rank(self._group))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(dist.get_world_size(self._group))

    @property
    def name(self) -> str:
        """The group's name."""
        return self._name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of each member in the world."""
        return tuple(dist.get_process_group_ranks(self._group))

    @property
    def timeout_s(self) -> float:
        """The timeout of all operations."""
        return self._timeout_s

    @property
    def is_closed(self) -> bool:
        """Whether this rank has left it."""
        return self._is_closed

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Refuse: torch sets the timeout when it makes the group.

        Raises:
            UsageError: Always.
        """
        self._refuse("set_timeout")

    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ReduceOp.SUM, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Reduce the tensor over all ranks, in place."""
        return self._run(dist.all_reduce, tensor, async_op, timeout_s, tensor, _torch_op(op))

    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce a list of tensors over all ranks, in place."""
        combined = CombinedWork([self.all_reduce(tensor, op, timeout_s=timeout_s, async_op=True) for tensor in tensors])
        if async_op:
            return combined
        combined.wait()
        return None

    def reduce(
        self,
        tensor: Tensor,
        root: int = 0,
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the tensor into the root's. Other ranks' tensors may hold partial sums afterwards, as with Gloo."""
        return self._run(dist.reduce, tensor, async_op, timeout_s, tensor, self._global(root), _torch_op(op))

    def broadcast(self, tensor: Tensor, root: int = 0, *, timeout_s: Timeout = None, async_op: bool = False) -> Any:
        """Copy the root's tensor into every rank's."""
        return self._run(dist.broadcast, tensor, async_op, timeout_s, tensor, self._global(root))

    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy rank i's input into outputs[i] on every rank."""
        return self._run(dist.all_gather, outputs, async_op, timeout_s, list(outputs), input)

    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy all inputs into one output."""
        return self._run(dist.all_gather_into_tensor, output, async_op, timeout_s, output, input)

    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Copy rank i's input into the root's outputs[i]."""
        into = None if outputs is None else list(outputs)
        return self._run(dist.gather, outputs, async_op, timeout_s, input, into, self._global(root))

    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = None,
        root: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the root's inputs[i] into rank i's output."""
        source = None if inputs is None else list(inputs)
        return self._run(dist.scatter, output, async_op, timeout_s, output, source, self._global(root))

    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce inputs[i] of all ranks into rank i's output."""
        return self._run(dist.reduce_scatter, output, async_op, timeout_s, output, list(inputs), _torch_op(op))

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""
        return self._run(dist.reduce_scatter_tensor, output, async_op, timeout_s, output, input, _torch_op(op))

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."""
        return self._run(dist.all_to_all, outputs, async_op, timeout_s, list(outputs), list(inputs))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows of one tensor."""
        splits = [None if sizes is None else list(sizes) for sizes in (output_splits, input_splits)]
        return self._run(dist.all_to_all_single, output, async_op, timeout_s, output, input, *splits)

    def barrier(self, *, timeout_s: Timeout = None, async_op: bool = False) -> Any:
        """Wait until every rank is here."""
        return self._run(dist.barrier, None, async_op, timeout_s)

    def send(
        self, tensor: Tensor, destination: int, tag: int = 0, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Send the tensor to one rank."""
        work = dist.isend(tensor, self._global(destination), self._group, tag)
        return self._finish(work, tensor, async_op, timeout_s)

    def recv(
        self,
        tensor: Tensor,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Receive into the tensor, from one rank or from any; returns the source."""
        if source is None:
            if async_op or timeout_s is not None:
                self._refuse("recv from any rank with async_op or timeout_s")
            return dist.get_group_rank(self._group, int(dist.recv(tensor, None, self._group, tag)))
        work = dist.irecv(tensor, self._global(source), self._group, tag)
        return self._finish(work, tensor, async_op, timeout_s) or source

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self._group)
        return values

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's value on the root, None elsewhere."""
        values: list[Any] | None = [None] * self.size if self.rank == root else None
        dist.gather_object(value, values, self._global(root), self._group)
        return values

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the root's value."""
        values = [value]
        dist.broadcast_object_list(values, self._global(root), self._group)
        return values[0]

    def scatter_object(self, values: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return this rank's part of the root's values."""
        part: list[Any] = [None]
        dist.scatter_object_list(part, None if values is None else list(values), self._global(root), self._group)
        return part[0]

    def empty(self, *shape: int, dtype: Any = None, timeout_s: Timeout = None) -> Tensor:
        """Return an uninitialised ordinary tensor: torch's backends have no memory that all ranks share."""
        return torch.empty(*shape, dtype=dtype)

    def coalescing(self, *, async_op: bool = False) -> AbstractContextManager[Any]:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        self._refuse("coalescing")

    def split(self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None) -> TorchGroup | None:
        """Make a group of some of the ranks. Only its members need to call this.

        Raises:
            UsageError: A rank is outside this group, or the timeout is not positive.
        """
        limit = seconds_of(timeout_s, self._timeout_s)
        members = sorted(ranks)
        if not members or members[0] < 0 or members[-1] >= self.size or len(set(members)) != len(members):
            raise UsageError(f'group "{self._name}": {members} must be different ranks from 0 to {self.size - 1}')
        if self.rank not in members:
            return None
        ranks_of_world = [self._global(rank) for rank in members]
        group = dist.new_group(ranks_of_world, timeout=timedelta(seconds=limit), use_local_synchronization=True)
        return TorchGroup(group, name=name or f"{self._name}:split:{','.join(map(str, members))}", timeout_s=limit)

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> TorchGroup | None:
        """Make one group per color, ordered by rank. Every rank must call this.

        Raises:
            UsageError: Keys would change the order, which torch does not support.
        """
        table = self.all_gather_object((color, key))
        if color is None:
            return None
        members = [rank for rank, (its_color, _) in enumerate(table) if its_color == color]
        if sorted(members, key=lambda rank: (table[rank][1], rank)) != members:
            self._refuse("split_by_color with keys that change the order")
        return self.split(members, name=name or f"{self._name}:color:{color}", timeout_s=timeout_s)

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> TorchGroup:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        self._refuse("merge")

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> TorchGroup:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        self._refuse("shrink")

    def abort(self, reason: str = "") -> None:
        """Break the group."""
        self._group.abort()

    def close(self) -> None:
        """Leave the group."""
        self._is_closed = True
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def _global(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise UsageError(
                f"rank {rank} is outside this group of {self.size} ranks; give 0 to {self.size - 1}", rank=self.rank
            )
        return int(dist.get_global_rank(self._group, rank))

    def _run(
        self, operation: Callable[..., Any], result: Any, async_op: bool, timeout_s: Timeout, *args: Any
    ) -> TorchWork | None:
        work = operation(*args, group=self._group, async_op=True)
        return None if work is None else self._finish(work, result, async_op, timeout_s)

    def _finish(self, work: Any, result: Any, async_op: bool, timeout_s: Timeout) -> TorchWork | None:
        wrapped = TorchWork(work, result, timeout_s)
        if async_op:
            return wrapped
        wrapped.wait()
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            f'{what} is not possible in group "{self._name}" over {dist.get_backend(self._group)}; '
            f"use the backend phalanx, which supports it"
        )


def _torch_op(op: AnyReduceOp) -> Any:
    if isinstance(op, dist.ReduceOp):  # torch's own; it knows what its backends can do
        return op
    read = as_reduce_op(op)
    if isinstance(read, PremulSum):
        raise UsageError("not every backend of torch supports premul_sum; scale the tensor yourself")
    return _TORCH_OPS[read]

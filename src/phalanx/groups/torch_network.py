"""A group over one of torch's own engines: Gloo, NCCL or MPI, behind the same protocol.

What an engine can't do raises its own error; what it has no notion of (symmetric tensors, merge, shrink) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.collectives import PremulSum, ReduceOp, Timeout
from phalanx.errors import UsageError

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
    """An operation under way. Satisfies phalanx.collectives.Work."""

    def __init__(self, work: Any, result: Any) -> None:
        self._work = work
        self._result = result

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for its end.

        Raises:
            RuntimeError: It failed, or took too long.
        """
        if timeout_s is None:
            self._work.wait()
        else:
            self._work.wait(timeout_s if isinstance(timeout_s, timedelta) else timedelta(seconds=timeout_s))

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

    def __repr__(self) -> str:
        return f'<TorchGroup "{self._name}" over {dist.get_backend(self._group)} rank {self.rank} of {self.size}>'

    @property
    def rank(self) -> int:
        """This rank."""
        return int(dist.get_rank(self._group))

    @property
    def size(self) -> int:
        """How many there are."""
        return int(dist.get_world_size(self._group))

    @property
    def name(self) -> str:
        """The group's name."""
        return self._name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the world."""
        return tuple(dist.get_process_group_ranks(self._group))

    @property
    def timeout_s(self) -> float:
        """How long an operation may take; torch's engines have one limit for all."""
        return self._timeout_s

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Refuse: torch fixes it when the group is made.

        Raises:
            UsageError: Always.
        """
        self._refuse("set_timeout")

    def all_reduce(
        self, tensor: Tensor, op: Any = ReduceOp.SUM, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Reduce the tensor over all ranks, in place."""
        return self._run(dist.all_reduce, tensor, async_op, timeout_s, tensor, _torch_op(op))

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: Any = ReduceOp.SUM, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Reduce a list of tensors over all ranks, in place."""
        works = [self.all_reduce(tensor, op, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        return TorchWork(works[-1]._work, list(tensors)) if async_op and works else None

    def reduce(
        self, tensor: Tensor, root: int = 0, op: Any = ReduceOp.SUM, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Reduce the tensor into the root's. Other ranks' tensors may hold partial sums afterwards, as with Gloo."""
        return self._run(dist.reduce, tensor, async_op, timeout_s, tensor, self._global(root), _torch_op(op))

    def broadcast(self, tensor: Tensor, root: int = 0, *, timeout_s: Any = None, async_op: bool = False) -> Any:
        """Copy the root's tensor into every rank's."""
        return self._run(dist.broadcast, tensor, async_op, timeout_s, tensor, self._global(root))

    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Copy rank i's input into outputs[i] on every rank."""
        return self._run(dist.all_gather, outputs, async_op, timeout_s, list(outputs), input)

    def all_gather_single(self, output: Tensor, input: Tensor, *, timeout_s: Any = None, async_op: bool = False) -> Any:
        """Copy all inputs into one output."""
        return self._run(dist.all_gather_into_tensor, output, async_op, timeout_s, output, input)

    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = 0,
        *,
        timeout_s: Any = None,
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
        timeout_s: Any = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the root's inputs[i] into rank i's output."""
        source = None if inputs is None else list(inputs)
        return self._run(dist.scatter, output, async_op, timeout_s, output, source, self._global(root))

    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: Any = ReduceOp.SUM,
        *,
        timeout_s: Any = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce inputs[i] of all ranks into rank i's output."""
        return self._run(dist.reduce_scatter, output, async_op, timeout_s, output, list(inputs), _torch_op(op))

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""
        return self._run(dist.reduce_scatter_tensor, output, async_op, timeout_s, output, input, _torch_op(op))

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Any = None, async_op: bool = False
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
        timeout_s: Any = None,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows of one tensor."""
        splits = [None if sizes is None else list(sizes) for sizes in (output_splits, input_splits)]
        return self._run(dist.all_to_all_single, output, async_op, timeout_s, output, input, *splits)

    def barrier(self, *, timeout_s: Any = None, async_op: bool = False) -> Any:
        """Wait until every rank is here."""
        return self._run(dist.barrier, None, async_op, timeout_s)

    def send(
        self, tensor: Tensor, destination: int, tag: int = 0, *, timeout_s: Any = None, async_op: bool = False
    ) -> Any:
        """Send the tensor to one rank."""
        work = dist.isend(tensor, self._global(destination), self._group, tag)
        return self._finish(work, tensor, async_op, timeout_s)

    def recv(
        self, tensor: Tensor, source: int | None = None, tag: int = 0, *, timeout_s: Any = None, async_op: bool = False
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

    def empty(self, *shape: int, dtype: Any = None, timeout_s: Any = None) -> Tensor:
        """Return an uninitialised tensor; this engine has no memory that all ranks share."""
        return torch.empty(*shape, dtype=dtype)

    def coalescing(self, *, async_op: bool = False) -> AbstractContextManager[Any]:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        self._refuse("coalescing")

    def split(self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None) -> TorchGroup | None:
        """Make a group of some of the ranks. With torch's engines only its members need to call this.

        Raises:
            UsageError: A rank is outside this group.
        """
        members = sorted(ranks)
        if not members or members[0] < 0 or members[-1] >= self.size or len(set(members)) != len(members):
            raise UsageError(f'group "{self._name}": ranks {members} are not {self.size} ranks from 0 on, each once')
        if self.rank not in members:
            return None
        group = dist.new_group([self._global(rank) for rank in members], use_local_synchronization=True)
        return TorchGroup(group, name=name or f"{self._name}:split:{','.join(map(str, members))}")

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> TorchGroup | None:
        """Make one group per color, ordered by rank. Every rank must call this.

        Raises:
            UsageError: Keys would change the order, which torch's groups can't.
        """
        table = self.all_gather_object((color, key))
        if color is None:
            return None
        members = [rank for rank, (its_color, _) in enumerate(table) if its_color == color]
        if sorted(members, key=lambda rank: (table[rank][1], rank)) != members:
            self._refuse("split_by_color with keys that change the order")
        return self.split(members, name=name or f"{self._name}:color:{color}")

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
        """Leave it."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def _global(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise UsageError(
                f"rank {rank} is outside this group of {self.size}; give 0 to {self.size - 1}", rank=self.rank
            )
        return int(dist.get_global_rank(self._group, rank))

    def _run(
        self, operation: Callable[..., Any], result: Any, async_op: bool, timeout_s: Timeout, *args: Any
    ) -> TorchWork | None:
        work = operation(*args, group=self._group, async_op=True)
        return None if work is None else self._finish(work, result, async_op, timeout_s)

    def _finish(self, work: Any, result: Any, async_op: bool, timeout_s: Timeout) -> TorchWork | None:
        wrapped = TorchWork(work, result)
        if async_op:
            return wrapped
        wrapped.wait(timeout_s)
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            f'{what} is not possible in group "{self._name}" over {dist.get_backend(self._group)}; '
            f"phalanx's own groups can do it (backend phalanx)"
        )


def _torch_op(op: ReduceOp | PremulSum) -> Any:
    if isinstance(op, PremulSum):
        raise UsageError("premul_sum is not possible over torch's engines for every backend; scale the tensor yourself")
    return _TORCH_OPS[ReduceOp(op)]

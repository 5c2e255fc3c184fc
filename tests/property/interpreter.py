"""Programs of collectives as data: run by every rank, with what torch computes alone beside what came out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import phalanx
from phalanx import ReduceOp
from tests.checks import same
from tests.reference import reduced, values


@dataclass(frozen=True)
class Step:
    """One operation, the same on every rank.

    Attributes:
        operation: Its name.
        dtype: Of all tensors.
        counts: Elements; where sizes may differ, rank r's is counts[r % len(counts)].
        op: How to reduce.
        root: Taken modulo the size of the group.
        group: 0 is the world, 1 a split of all, 2 the even ranks.
        is_async: Whether to wait later, in an order of this rank's own.
        is_strided: Whether tensors lie in pieces.
        seed: Of the values.
    """

    operation: str
    dtype: torch.dtype
    counts: tuple[int, ...]
    op: ReduceOp
    root: int
    group: int
    is_async: bool
    is_strided: bool
    seed: int


Outcome = tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]


class Interpreter:
    """Runs steps in one group."""

    def __init__(self, group: Any, step: Step) -> None:
        self.group, self.step = group, step
        self.size, self.rank, self.root = group.size, group.rank, step.root % group.size

    def count(self, rank: int = 0) -> int:
        return self.step.counts[rank % len(self.step.counts)]

    def given(self, rank: int, count: int, *seed: int) -> torch.Tensor:
        return values(self.step.dtype, count, self.step.seed, rank, *seed)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.step.is_strided:
            return tensor.clone()
        apart = torch.zeros(tensor.numel(), 3).to(tensor.dtype)
        apart[:, 1] = tensor
        return apart[:, 1]

    def blank(self, count: int) -> torch.Tensor:
        return self.place(torch.zeros(count).to(self.step.dtype))

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self.group, name)(*args, async_op=self.step.is_async)

    def inputs(self) -> list[torch.Tensor]:
        return [self.given(rank, self.count()) for rank in range(self.size)]

    def all_reduce(self) -> Outcome:
        inputs = self.inputs()
        tensor = self.place(inputs[self.rank])
        return self.call("all_reduce", tensor, self.step.op), [(tensor, reduced(inputs, self.step.op))]

    def all_reduce_coalesced(self) -> Outcome:
        lists = [[self.given(rank, count, count) for count in self.step.counts] for rank in range(self.size)]
        tensors = [self.place(tensor) for tensor in lists[self.rank]]
        expected = [reduced([its[i] for its in lists], self.step.op) for i in range(len(tensors))]
        return self.call("all_reduce_coalesced", tensors, self.step.op), list(zip(tensors, expected, strict=True))

    def reduce(self) -> Outcome:
        inputs = self.inputs()
        tensor = self.place(inputs[self.rank])
        expected = reduced(inputs, self.step.op) if self.rank == self.root else inputs[self.rank]
        return self.call("reduce", tensor, self.root, self.step.op), [(tensor, expected)]

    def broadcast(self) -> Outcome:
        inputs = self.inputs()
        tensor = self.place(inputs[self.rank])
        return self.call("broadcast", tensor, self.root), [(tensor, inputs[self.root])]

    def all_gather(self) -> Outcome:
        inputs = [self.given(rank, self.count(rank)) for rank in range(self.size)]
        outputs = [self.blank(tensor.numel()) for tensor in inputs]
        work = self.call("all_gather", outputs, self.place(inputs[self.rank]))
        return work, list(zip(outputs, inputs, strict=True))

    def all_gather_single(self) -> Outcome:
        inputs = self.inputs()
        output = self.blank(self.count() * self.size)
        return self.call("all_gather_single", output, self.place(inputs[self.rank])), [(output, torch.cat(inputs))]

    def gather(self) -> Outcome:
        inputs = self.inputs()
        outputs = [self.blank(self.count()) for _ in inputs] if self.rank == self.root else []
        work = self.call("gather", outputs or None, self.place(inputs[self.rank]), self.root)
        return work, list(zip(outputs, inputs, strict=False))

    def scatter(self) -> Outcome:
        inputs = self.inputs()
        output = self.blank(self.count())
        given = [self.place(tensor) for tensor in inputs] if self.rank == self.root else None
        return self.call("scatter", output, given, self.root), [(output, inputs[self.rank])]

    def reduce_scatter(self) -> Outcome:
        blocks = [[self.given(rank, self.count(to), to) for to in range(self.size)] for rank in range(self.size)]
        output = self.blank(self.count(self.rank))
        work = self.call("reduce_scatter", output, [self.place(b) for b in blocks[self.rank]], self.step.op)
        return work, [(output, reduced([its[self.rank] for its in blocks], self.step.op))]

    def reduce_scatter_single(self) -> Outcome:
        inputs = [self.given(rank, self.count() * self.size) for rank in range(self.size)]
        output = self.blank(self.count())
        work = self.call("reduce_scatter_single", output, self.place(inputs[self.rank]), self.step.op)
        start = self.rank * self.count()
        return work, [(output, reduced(inputs, self.step.op)[start : start + self.count()])]

    def all_to_all(self) -> Outcome:
        def block(source: int, target: int) -> torch.Tensor:
            return self.given(source, self.count(source + 2 * target), target)

        expected = [block(source, self.rank) for source in range(self.size)]
        outputs = [self.blank(tensor.numel()) for tensor in expected]
        inputs = [self.place(block(self.rank, target)) for target in range(self.size)]
        return self.call("all_to_all", outputs, inputs), list(zip(outputs, expected, strict=True))

    def all_to_all_single(self) -> Outcome:
        def block(source: int, target: int) -> torch.Tensor:
            return self.given(source, self.count(source + 2 * target), target)

        expected = [block(source, self.rank) for source in range(self.size)]
        blocks = [block(self.rank, target) for target in range(self.size)]
        output = self.blank(sum(tensor.numel() for tensor in expected))
        splits = [tensor.numel() for tensor in expected], [tensor.numel() for tensor in blocks]
        work = self.call("all_to_all_single", output, self.place(torch.cat(blocks)), *splits)
        return work, [(output, torch.cat(expected))]

    def barrier(self) -> Outcome:
        return self.call("barrier"), []

    def messages(self) -> Outcome:
        """Everybody sends to everybody, in an order of its own, with tags."""
        order = random.Random(self.step.seed * 100 + self.rank)
        outputs = [self.blank(self.count(source)) for source in range(self.size)]
        starts: list[Callable[[], Any]] = []
        tag = self.step.seed % 5
        for peer in range(self.size):
            sent = self.place(self.given(self.rank, self.count(self.rank), peer))
            starts.append(partial(self.group.send, sent, peer, tag, async_op=True))
            starts.append(partial(self.group.recv, outputs[peer], peer, tag, async_op=True))
        order.shuffle(starts)
        works = [start() for start in starts]
        order.shuffle(works)
        for work in works:
            work.wait()
        expected = [self.given(source, self.count(source), self.rank) for source in range(self.size)]
        return None, list(zip(outputs, expected, strict=True))


_HELPERS = ("count", "given", "place", "blank", "call", "inputs")
OPERATIONS = tuple(name for name in vars(Interpreter) if name not in _HELPERS and not name.startswith("_"))


def run_program(steps: list[Step]) -> None:
    world = phalanx.connect(timeout_s=30)
    groups = [world, world.split(range(world.size)), world.split(range(0, world.size, 2))]
    order = random.Random(world.rank)
    pending: list[tuple[int, Any, list[tuple[torch.Tensor, torch.Tensor]]]] = []
    for number, step in enumerate(steps):
        group = groups[step.group]
        if group is None:
            continue
        work, pairs = getattr(Interpreter(group, step), step.operation)()
        pending.append((number, work, pairs))
    order.shuffle(pending)
    for number, work, pairs in pending:
        if work is not None:
            work.wait()
        for place, (actual, expected) in enumerate(pairs):
            same(actual, expected, f"step {number} ({steps[number]}), tensor {place}")

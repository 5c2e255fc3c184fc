"""One collective as each contender calls it: its tensors, the call, and the check of what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.collectives import Group
from phalanx_tools.bench.cases import Case
from phalanx_tools.bench.gpu.data import RandomData
from phalanx_tools.bench.gpu.goals import counts

Calls = dict[str, Callable[..., Any]]
_POISON = float("nan")
_CALLS_IN_A_ROW = 4  # in place: after more of them values would be too large


def phalanx_calls(group: Group) -> Calls:
    """Return the calls of a phalanx group."""
    return {
        "all_reduce": group.all_reduce,
        "all_gather": group.all_gather_single,
        "reduce_scatter": group.reduce_scatter_single,
        "broadcast": group.broadcast,
        "all_to_all": group.all_to_all_single,
        "send": group.send,
        "recv": group.recv,
    }


def torch_calls(group: Any) -> Calls:
    """Return the calls of one of torch's process groups."""
    return {
        "all_reduce": partial(dist.all_reduce, group=group),
        "all_gather": partial(dist.all_gather_into_tensor, group=group),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, group=group),
        "broadcast": partial(dist.broadcast, group=group),
        "all_to_all": partial(dist.all_to_all_single, group=group),
        "send": partial(dist.send, group=group),
        "recv": partial(dist.recv, group=group),
    }


def staged_messages(calls: Calls) -> Calls:
    """Send and receive by way of host memory, as a program must over Gloo, which sends host memory only."""
    send, recv = calls["send"], calls["recv"]

    def recv_staged(tensor: Tensor, peer: int) -> None:
        arrived = torch.empty_like(tensor, device="cpu")
        recv(arrived, peer)
        tensor.copy_(arrived)

    return {**calls, "send": lambda tensor, peer: send(tensor.cpu(), peer), "recv": recv_staged}


@dataclass(frozen=True)
class Prepared:
    """One case, ready to run.

    Attributes:
        call: Runs it once.
        refill: Puts fresh values into its inputs and poison into its outputs.
        is_right: Tells whether so many calls after a refill have left what they must.
        keeps_inputs: Whether every call has the same inputs, so that any number of them leaves the same.
    """

    call: Callable[[], Any]
    refill: Callable[[], None]
    is_right: Callable[[int], bool]
    keeps_inputs: bool = True

    def check(self, num_calls: int = 1) -> bool:
        """Refill it, make calls without a pause, and see what they leave."""
        self.refill()
        for _ in range(num_calls):
            self.call()
        return self.is_right(num_calls)

    def check_turn(self) -> bool:
        """Check a turn that is over: what its last call has left, or else some more calls in a row."""
        return self.is_right(1) if self.keeps_inputs else self.check(_CALLS_IN_A_ROW)


class Preparation:
    """Makes the tensors of cases on one rank."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._device = device

    def prepare(self, case: Case, calls: Calls, seed: int) -> Prepared:
        """Allocate the tensors of a case."""
        data = RandomData(seed, self._device)
        make: Callable[[Case, Calls, RandomData], Prepared] = getattr(self, f"_{case.operation}")
        return make(case, calls, data)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, device=self._device)

    def _all_reduce(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        tensor = self._empty(counts(case)[0])
        keys = [(rank,) for rank in range(case.ranks)]
        return Prepared(
            partial(calls["all_reduce"], tensor),
            lambda: _ignore(data.fill(tensor, self._rank)),
            lambda num_calls: data.is_sum(tensor, keys, num_calls),
            keeps_inputs=False,
        )

    def _broadcast(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        tensor = self._empty(counts(case)[0])

        def refill() -> None:
            _ignore(data.fill(tensor, 0) if self._rank == 0 else tensor.fill_(_POISON))

        return Prepared(partial(calls["broadcast"], tensor, 0), refill, lambda _: data.is_copy(tensor, 0))

    def _all_gather(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        part = counts(case)[1]
        given, output = self._empty(part), self._empty(case.ranks * part)
        blocks = output.view(case.ranks, part)
        return Prepared(
            partial(calls["all_gather"], output, given),
            lambda: _ignore(data.fill(given, self._rank), output.fill_(_POISON)),
            lambda _: all(data.is_copy(blocks[rank], rank) for rank in range(case.ranks)),
        )

    def _reduce_scatter(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        part = counts(case)[1]
        given, output = self._empty(case.ranks * part), self._empty(part)
        return Prepared(
            partial(calls["reduce_scatter"], output, given),
            lambda: _ignore(self._fill_blocks(given, case.ranks, data), output.fill_(_POISON)),
            lambda _: data.is_sum(output, [(rank, self._rank) for rank in range(case.ranks)]),
        )

    def _all_to_all(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        part = counts(case)[1]
        given, output = self._empty(case.ranks * part), self._empty(case.ranks * part)
        blocks = output.view(case.ranks, part)
        return Prepared(
            partial(calls["all_to_all"], output, given),
            lambda: _ignore(self._fill_blocks(given, case.ranks, data), output.fill_(_POISON)),
            lambda _: all(data.is_copy(blocks[rank], rank, self._rank) for rank in range(case.ranks)),
        )

    def _send_recv(self, case: Case, calls: Calls, data: RandomData) -> Prepared:
        given, received = self._empty(counts(case)[0]), self._empty(counts(case)[0])
        peer, is_first = self._rank ^ 1, self._rank % 2 == 0
        there, back = partial(calls["send"], given, peer), partial(calls["recv"], received, peer)
        steps = (there, back) if is_first else (back, there)
        return Prepared(
            lambda: _ignore(*(step() for step in steps)),
            lambda: _ignore(data.fill(given, self._rank), received.fill_(_POISON)),
            lambda _: data.is_copy(received, peer),
        )

    def _fill_blocks(self, given: Tensor, num_blocks: int, data: RandomData) -> Tensor:
        for number, block in enumerate(given.view(num_blocks, -1)):
            data.fill(block, self._rank, number)
        return given


def _ignore(*_: Any) -> None:
    """Take values that nobody needs."""

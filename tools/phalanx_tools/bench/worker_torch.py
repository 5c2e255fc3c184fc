"""A rank of phalanx, or of torch.distributed over phalanx or Gloo.

It takes orders over a Unix socket, times calls, and answers.
"""

from __future__ import annotations

import functools
import itertools
import json
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from phalanx.collectives import Group
from phalanx.groups.connect import connect
from phalanx.settings import read_placement
from phalanx_tools.bench import training
from phalanx_tools.bench.cases import ITEM_BYTES

Prepared = training.Prepared
_BACKENDS = {"gloo": "gloo", "phalanx_torch": "phalanx"}


def _pattern(count: int, rank: int) -> torch.Tensor:
    return (torch.arange(count) % 97 + rank + 1).float()


class _Contender:
    """The calls of one engine, under common names."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.calls: dict[str, Callable[..., Any]] = {}

    def meet(self) -> None:
        """Wait for the other ranks."""
        self.calls["barrier"]()

    def prepare(self, operation: str, size: int) -> Prepared:
        """Return a call, its arguments, and a check of its effect after one call."""
        count = max(size // ITEM_BYTES, 1)
        part = max(count // self.ranks, 1)
        return getattr(self, f"_{operation}")(count, part)  # type: ignore[no-any-return]

    def _all_reduce(self, count: int, _: int) -> Prepared:
        data = _pattern(count, self.rank)
        want = torch.stack([_pattern(count, rank) for rank in range(self.ranks)]).sum(0)
        return self.calls["all_reduce"], (data,), lambda: torch.equal(data, want)

    def _all_gather(self, _: int, part: int) -> Prepared:
        output, inputs = torch.zeros(part * self.ranks), _pattern(part, self.rank)
        want = torch.cat([_pattern(part, rank) for rank in range(self.ranks)])
        return self.calls["all_gather"], (output, inputs), lambda: torch.equal(output, want)

    def _reduce_scatter(self, _: int, part: int) -> Prepared:
        output, inputs = torch.zeros(part), _pattern(part * self.ranks, self.rank)
        whole = torch.stack([_pattern(part * self.ranks, rank) for rank in range(self.ranks)]).sum(0)
        want = whole[self.rank * part : (self.rank + 1) * part]
        return self.calls["reduce_scatter"], (output, inputs), lambda: torch.equal(output, want)

    def _broadcast(self, count: int, _: int) -> Prepared:
        data = _pattern(count, self.rank)
        return self.calls["broadcast"], (data, 0), lambda: torch.equal(data, _pattern(count, 0))

    def _all_to_all(self, _: int, part: int) -> Prepared:
        output, inputs = torch.zeros(part * self.ranks), _pattern(part * self.ranks, self.rank)
        mine = slice(self.rank * part, (self.rank + 1) * part)
        want = torch.cat([_pattern(part * self.ranks, rank)[mine] for rank in range(self.ranks)])
        return self.calls["all_to_all"], (output, inputs), lambda: torch.equal(output, want)

    def _barrier(self, *_: int) -> Prepared:
        return self.calls["barrier"], (), lambda: True

    def _send_recv(self, count: int, _: int) -> Prepared:
        return self._exchange(count, self.rank ^ 1, is_first=self.rank % 2 == 0)

    def _send_recv_far(self, count: int, _: int) -> Prepared:
        """Exchange with a rank in the other half, which is on another host if there are several."""
        half = self.ranks // 2
        return self._exchange(count, (self.rank + half) % self.ranks, is_first=self.rank < half)

    def _exchange(self, count: int, peer: int, *, is_first: bool) -> Prepared:
        data, received = _pattern(count, self.rank), torch.zeros(count)
        send, recv = self.calls["send"], self.calls["recv"]

        def exchange_first() -> None:
            send(data, peer)
            recv(received, peer)

        def exchange_second() -> None:
            recv(received, peer)
            send(data, peer)

        call = exchange_first if is_first else exchange_second
        return call, (), lambda: torch.equal(received, _pattern(count, peer))


class Phalanx(_Contender):
    """The Python Group, called as a user would."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        self.calls = {
            "all_reduce": group.all_reduce,
            "all_gather": group.all_gather_single,
            "reduce_scatter": group.reduce_scatter_single,
            "broadcast": group.broadcast,
            "all_to_all": group.all_to_all_single,
            "barrier": group.barrier,
            "send": group.send,
            "recv": group.recv,
        }

    def _symmetric_all_reduce(self, count: int, _: int) -> Prepared:
        data = self.group.empty(count)
        data.copy_(_pattern(count, self.rank))
        want = torch.stack([_pattern(count, rank) for rank in range(self.ranks)]).sum(0)
        return self.group.all_reduce, (data,), lambda: torch.equal(data, want)

    def _reference_copy(self, count: int, _: int) -> Prepared:
        """Read and write as many bytes as an all_reduce must, with one plain copy per rank."""
        source, destination = _pattern(count, self.rank), torch.zeros(count)
        return destination.copy_, (source,), lambda: torch.equal(source, destination)

    def _reference_add(self, count: int, part: int) -> Prepared:
        """Sum a part of every rank's tensor and spread it, with plain adds and copies of this rank's own memory."""
        parts = [_pattern(part, rank) for rank in range(self.ranks)]

        def add_and_spread() -> None:
            for other in parts[1:]:
                parts[0].add_(other)
            for other in parts[1:]:
                other.copy_(parts[0])

        return add_and_spread, (), lambda: all(torch.equal(parts[0], other) for other in parts)


class PlainCopies(_Contender):
    """What the machine itself needs: a copy on every rank, and no meeting."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.calls = {"barrier": group.barrier}

    def prepare(self, operation: str, size: int) -> Prepared:
        """Return a copy of what a rank gets in the operation."""
        count = max(size // ITEM_BYTES, 1)
        gets = max(count // self.ranks, 1) if operation == "reduce_scatter" else count
        source, destination = _pattern(gets, self.rank), torch.zeros(gets)
        return destination.copy_, (source,), lambda: torch.equal(source, destination)


class TorchDistributed(_Contender):
    """torch.distributed over one of its backends."""

    def __init__(self, rank: int, ranks: int, backend: str, **place: Any) -> None:
        super().__init__(rank, ranks)
        import torch.distributed as dist

        warnings.simplefilter("ignore")
        dist.init_process_group(backend, rank=rank, world_size=ranks, **place)
        self.calls = {
            "all_reduce": dist.all_reduce,
            "all_gather": dist.all_gather_into_tensor,
            "reduce_scatter": dist.reduce_scatter_tensor,
            "broadcast": dist.broadcast,
            "all_to_all": dist.all_to_all_single,
            "barrier": dist.barrier,
            "send": dist.send,
            "recv": dist.recv,
        }

    def _local_step(self, *_: int) -> Prepared:
        return training.local_step()

    def _silent_ddp_step(self, *_: int) -> Prepared:
        return training.silent_ddp_step()

    def _ddp_step(self, *_: int) -> Prepared:
        return training.ddp_step()

    def _fsdp_step(self, *_: int) -> Prepared:
        return training.fsdp_step()


class TorchAlone(TorchDistributed):
    """What torch.distributed itself needs: its calls on every rank, over a backend in C++ that meets nobody.

    It does nothing, except that it copies a rank's own bytes where there is an output apart from the input.
    """

    def __init__(self, group: Group) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        super().__init__(group.rank, group.size, "fake", store=FakeStore())
        self._meet = group.barrier

    def prepare(self, operation: str, size: int) -> Prepared:
        """Return the call, without a check: there is no result."""
        call, arguments, _ = super().prepare(operation, size)
        return call, arguments, lambda: True

    def meet(self) -> None:
        """Wait for the other ranks, which its own barrier does not."""
        self._meet()


def _time(contender: _Contender, call: Callable[..., Any], arguments: tuple[Any, ...], iterations: int) -> float:
    bound = functools.partial(call, *arguments)  # the quickest way to call anything again and again
    contender.meet()
    start = time.perf_counter()
    for _ in itertools.repeat(None, iterations):
        bound()
    return time.perf_counter() - start


def socket_name(address: str) -> str:
    """Return the name of a Unix socket: that of a path as it is, any other in the abstract namespace."""
    return address if address.startswith("/") else "\0" + address


def _make_contender(kind: str, meeting: str) -> _Contender:
    """Make a contender.

    Args:
        kind: Its name.
        meeting: Where ranks of torch.distributed meet: a URL.
    """
    if kind in _BACKENDS and meeting == "env://":  # ranks on several hosts, which have their places from variables
        placement = read_placement()
        assert placement is not None
        return TorchDistributed(placement.rank, placement.size, _BACKENDS[kind], init_method=meeting)
    group = connect()
    if kind == "phalanx":
        return Phalanx(group)
    if kind == "copy":
        return PlainCopies(group)
    if kind == "torch_alone":
        return TorchAlone(group)
    return TorchDistributed(group.rank, group.size, _BACKENDS[kind], init_method=meeting)


def serve(kind: str, address: str, meeting: str) -> None:
    """Work for the controller until it closes the connection."""
    torch.set_num_threads(1)
    contender = _make_contender(kind, meeting)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(socket_name(address))
    stream = connection.makefile("rw")
    stream.write(json.dumps({"rank": contender.rank, "version": f"torch {torch.__version__}"}) + "\n")
    stream.flush()
    prepared: Prepared | None = None
    for line in stream:
        order = json.loads(line)
        if order["do"] == "prepare":
            prepared = None
            prepared = contender.prepare(order["operation"], order["bytes"])
            prepared[0](*prepared[1])
            answer: dict[str, Any] = {"correct": bool(prepared[2]())}
        else:
            assert prepared is not None
            answer = {"elapsed_s": _time(contender, prepared[0], prepared[1], order["iterations"])}
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

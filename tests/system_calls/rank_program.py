"""What the ranks of a case do: once everything that the engine asks of the kernel."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

import torch

import phalanx
from phalanx.torch_backend.untyped import dist
from tests.system_calls.page import NOBODY, become

TIMEOUT_S = 60.0  # of every operation: who waits that long was not told


def be_rank(notes: str, door: str) -> None:
    """Do the work as a rank that calls may be made to fail in, and write down how it went."""
    rank = int(os.environ["RANK"])
    began = time.monotonic()
    become(rank)
    try:
        _use_torch(rank) if door == "torch" else _work()
    except BaseException as error:
        become(NOBODY)
        _note(notes, rank, began, error)
        raise
    become(NOBODY)
    _note(notes, rank, began, None)


def _work() -> None:
    group: Any = phalanx.connect(timeout_s=TIMEOUT_S)
    peer = 1 - group.rank
    _check(group, torch.ones(4))
    _check(group, torch.ones(300_000))
    part = group.split([0, 1])
    _check(part, torch.ones(4))
    another = phalanx.connect(timeout_s=TIMEOUT_S)
    another.barrier()
    _check(group, group.empty(1000).fill_(1))
    group.all_reduce(torch.ones(4), async_op=True).wait()
    for count in (4, 4_000, 400_000):
        _exchange(group, peer, count)
    for each in (another, part, group):
        each.barrier()
        each.close()


def _use_torch(rank: int) -> None:
    peer = 1 - rank
    dist.init_process_group("phalanx", timeout=timedelta(seconds=TIMEOUT_S))
    for count in (4, 300_000):
        _check_sum(torch.ones(count))
    part = dist.new_group([0, 1])
    _check_sum(torch.ones(4), part)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True).wait()
    gathered = [torch.zeros(4), torch.zeros(4)]
    dist.all_gather(gathered, torch.ones(4))
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1], "wrong objects"
    received = torch.zeros(4_000)
    incoming = dist.irecv(received, peer)
    dist.isend(torch.ones(4_000), peer).wait()
    incoming.wait()
    assert bool((received == 1).all()), "a wrong message"
    dist.barrier()
    dist.destroy_process_group(part)
    dist.destroy_process_group()


def _check_sum(tensor: torch.Tensor, group: Any = None) -> None:
    dist.all_reduce(tensor, group=group)
    assert bool((tensor == 2).all()), "a wrong sum"


def _check(group: Any, tensor: torch.Tensor) -> None:
    group.all_reduce(tensor)
    assert bool((tensor == 2).all()), "a wrong sum"


def _exchange(group: Any, peer: int, count: int) -> None:
    received = torch.zeros(count)
    incoming = group.recv(received, peer, async_op=True)
    group.send(torch.ones(count), peer, async_op=True).wait()
    incoming.wait()
    assert bool((received == 1).all()), "a wrong message"


def _note(notes: str, rank: int, began: float, error: BaseException | None) -> None:
    facts = {"rank": rank, "seconds": time.monotonic() - began, **describe(error)}
    with open(notes, "a") as file:
        file.write(json.dumps(facts) + "\n")


def describe(error: BaseException | None) -> dict[str, Any]:
    """Write down an exception."""
    if error is None:
        return {"kind": "", "text": "", "classes": [], "culprits": []}
    classes = [each.__name__ for each in type(error).__mro__]
    culprits = list(getattr(error, "culprits", ()))
    return {"kind": type(error).__name__, "text": str(error), "classes": classes, "culprits": culprits}

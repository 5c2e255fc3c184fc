"""Print what ranks print that are late, disagree, die, or use a group in a forked process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch

import phalanx


def arrive_late() -> None:
    group = phalanx.connect()
    if group.rank == 1:
        time.sleep(600)
    group.all_reduce(torch.ones(4), timeout_s=1)


def disagree() -> None:
    group = phalanx.connect()
    if group.rank == 2:
        group.broadcast(torch.ones(4), root=0)
    else:
        group.all_reduce(torch.ones(4))


def be_killed() -> None:
    group = phalanx.connect()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def use_group_in_child() -> None:
    group = phalanx.connect()
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
        except phalanx.ClosedError as error:
            print(f"ClosedError: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def take_too_much() -> None:
    group = phalanx.connect()
    group.empty(2**42, dtype=torch.uint8)


def print_error(program: Callable[[], None], ranks: int) -> None:
    try:
        phalanx.spawn(program, ranks=ranks)
    except phalanx.PhalanxError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    print_error(arrive_late, 2)
    print_error(disagree, 3)
    print_error(be_killed, 2)
    print_error(use_group_in_child, 1)
    print_error(take_too_much, 2)

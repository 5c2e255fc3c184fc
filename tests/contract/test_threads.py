"""Groups in several threads of one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.checks import same
from tests.worlds import every_world, worlds


def _run_threads(count: int, body: Callable[[int], None]) -> None:
    errors: list[BaseException] = []
    device = torch.get_default_device()  # of the calling thread alone

    def guarded(number: int) -> None:
        try:
            with device:
                body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@every_world
def test_every_thread_works_with_a_group_of_its_own(group: Any) -> None:
    parts = [group.split(range(group.size)) for _ in range(3)]

    def body(number: int) -> None:
        for turn in range(30):
            tensor = torch.full((50,), float(number))
            parts[number].all_reduce(tensor)
            same(tensor, torch.full((50,), float(number * group.size)), (number, turn))

    _run_threads(3, body)


@worlds(2, 3)
def test_threads_share_a_group_for_messages(group: Any) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def body(number: int) -> None:
        for turn in range(20):
            size = (1, 3000, 60_000)[turn % 3]
            work = group.send(torch.full((size,), float(turn)), right, number, async_op=True)
            tensor = torch.full((size,), -1.0)
            assert group.recv(tensor, left, number) == left
            same(tensor, torch.full((size,), float(turn)), (number, turn))
            work.wait()

    _run_threads(3, body)


@worlds(2, 3)
def test_threads_share_a_group_for_equal_collectives(group: Any) -> None:
    """Whichever thread comes first on each rank: all make the same call, so each meets somebody's."""

    def body(number: int) -> None:
        del number
        for _ in range(30):
            tensor = torch.ones(10)
            group.all_reduce(tensor)
            same(tensor, torch.full((10,), float(group.size)))

    _run_threads(4, body)


@worlds(2)
def test_a_thread_may_wait_for_another_thread_s_work(group: Any) -> None:
    tensors = [torch.ones(1000) for _ in range(40)]
    works = [group.all_reduce(tensor, async_op=True) for tensor in tensors]

    def body(number: int) -> None:
        for work in works[number::4]:
            work.wait()

    _run_threads(4, body)
    for tensor in tensors:
        same(tensor, torch.full((1000,), 2.0))


@worlds(2)
def test_other_threads_run_while_one_waits(group: Any) -> None:
    """Rank 1 comes only after rank 0's other thread has told it to: the interpreter must be free meanwhile."""
    if group.rank == 1:
        group.recv(torch.empty(0), 0)
        group.barrier()
        return

    def body(number: int) -> None:
        if number == 0:
            group.barrier()
        else:
            group.send(torch.empty(0), 1)

    _run_threads(2, body)


@worlds(2)
def test_other_threads_go_on_while_a_small_operation_waits(group: Any) -> None:
    """A waiting rank must not keep the interpreter: here what it waits for comes from its own other thread."""
    signals = group.split(range(2))
    for turn in range(40):
        is_message = turn % 2 == 0
        if group.rank == 1:
            signals.recv(torch.zeros(1), 0)
            group.send(torch.ones(1), 0) if is_message else group.barrier()
            continue
        is_about_to_wait = threading.Event()
        signal = torch.ones(1)

        def let_the_peer_come(start: threading.Event = is_about_to_wait, signal: torch.Tensor = signal) -> None:
            start.wait()
            signals.send(signal, 1)

        thread = threading.Thread(target=let_the_peer_come)
        thread.start()
        is_about_to_wait.set()
        group.recv(torch.zeros(1), 1) if is_message else group.barrier()
        thread.join()

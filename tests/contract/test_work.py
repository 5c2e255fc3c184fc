from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import Stopwatch, same
from tests.worlds import every_world, worlds


@every_world
def test_every_operation_has_an_asynchronous_form(group: SharedMemoryGroup) -> None:
    n, me = group.size, group.rank
    blocks = [torch.full((2,), float(me)) for _ in range(n)]
    outs = [[torch.zeros(2) for _ in range(n)] for _ in range(3)]
    joined, swapped, part, single, scattered = (
        torch.zeros(n, 2),
        torch.zeros(n, 2),
        torch.zeros(2),
        torch.zeros(2),
        torch.zeros(2),
    )
    summed, rooted, copied, listed = torch.ones(2), torch.ones(2), torch.full((2,), float(me)), [torch.ones(2)]
    root = me == 0
    works: list[Any] = [
        group.all_reduce(summed, async_op=True),
        group.all_reduce_coalesced(listed, async_op=True),
        group.reduce(rooted, async_op=True),
        group.broadcast(copied, n - 1, async_op=True),
        group.all_gather(outs[0], blocks[0], async_op=True),
        group.all_gather_single(joined, blocks[0], async_op=True),
        group.gather(outs[1] if root else None, blocks[0], async_op=True),
        group.scatter(scattered, [torch.full((2,), float(r)) for r in range(n)] if root else None, async_op=True),
        group.reduce_scatter(part, blocks, async_op=True),
        group.reduce_scatter_single(single, torch.ones(n, 2), async_op=True),
        group.all_to_all(outs[2], blocks, async_op=True),
        group.all_to_all_single(swapped, torch.stack(blocks), async_op=True),
        group.barrier(async_op=True),
    ]
    for work in reversed(works):
        work.wait()
        assert work.done()
        assert work.exception() is None
    every, ranks = torch.full((2,), float(n)), torch.arange(float(n)).repeat_interleave(2).view(n, 2)
    same(summed, every)
    same(listed[0], every)
    same(rooted, every if root else torch.ones(2))
    same(copied, torch.full((2,), n - 1.0))
    same(torch.stack(outs[0]), ranks)
    same(joined, ranks)
    same(torch.stack(outs[1]), ranks if root else torch.zeros(n, 2))
    same(scattered, torch.full((2,), float(me)))
    same(part, torch.full((2,), n * (n - 1) / 2))
    same(single, every)
    same(torch.stack(outs[2]), ranks)
    same(swapped, ranks)


@every_world
def test_the_result_of_a_work_are_the_tensors_it_filled(group: SharedMemoryGroup) -> None:
    tensor = torch.ones(3)
    work: Any = group.all_reduce(tensor, async_op=True)
    assert work.result() is tensor
    outputs = [torch.zeros(1) for _ in range(group.size)]
    work = group.all_gather(outputs, torch.ones(1), async_op=True)
    assert work.result() is outputs
    same(torch.cat(outputs), torch.ones(group.size))


@every_world
def test_hundreds_of_works_run_in_the_order_they_were_started(group: SharedMemoryGroup) -> None:
    tensor = torch.ones(600)
    works = []
    for number in range(300):
        works.append(group.all_reduce(tensor[2 * number : 2 * number + 2], async_op=True))
        if number % 50 == 7:
            group.barrier()  # a blocking call waits for what was started before it
            assert all(work.done() for work in works)
    works[-1].wait()
    assert all(work.done() for work in works)
    same(tensor, torch.full((600,), float(group.size)))


@worlds(2, 3)
def test_waiting_for_too_short_raises_and_cancels_nothing(group: SharedMemoryGroup) -> None:
    group.set_timeout(60)
    others = range(1, group.size)
    for number in range(20):
        tensor = torch.full((2,), float(number))
        if group.rank == 0:
            work: Any = group.all_reduce(tensor, async_op=True)
            watch = Stopwatch()
            with pytest.raises(phalanx.OperationTimeoutError) as caught:
                work.wait(0.005)
            assert watch.seconds() < 30, f"waited {watch.seconds():.1f} s instead of 5 ms"
            assert "all_reduce" in str(caught.value)
            assert "timed out after 5 ms" in str(caught.value)
            assert not work.done()
            assert work.exception() is None
            for peer in others:
                group.send(torch.empty(0), peer)
            work.wait()
        else:
            group.recv(torch.empty(0), 0)
            group.all_reduce(tensor)
        same(tensor, torch.full((2,), float(number * group.size)), number)


@worlds(2)
def test_waiting_too_short_for_a_message_raises_and_cancels_nothing(group: SharedMemoryGroup) -> None:
    for size in (2, 200_000):
        if group.rank == 0:
            tensor = torch.zeros(size)
            work = group.recv(tensor, 1, 7, async_op=True)
            with pytest.raises(phalanx.OperationTimeoutError) as caught:
                work.wait(0.005)
            assert "recv" in str(caught.value)
            assert "5 ms" in str(caught.value)
            assert not work.done()
            group.send(torch.empty(0), 1)
            work.wait()
            same(tensor, torch.ones(size))
        else:
            group.recv(torch.empty(0), 0)
            group.send(torch.ones(size), 0, 7)


@worlds(2)
def test_a_work_that_fails_tells_why(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        work: Any = group.all_reduce(torch.ones(2), async_op=True)
        with pytest.raises(phalanx.MismatchError) as caught:
            work.wait()
        assert work.done()
        told = work.exception()
        assert type(told) is phalanx.MismatchError
        assert str(told).splitlines()[0] == str(caught.value).splitlines()[0]
        with pytest.raises(phalanx.MismatchError):
            work.result()
        with pytest.raises(phalanx.MismatchError):
            work.wait()
    else:
        with pytest.raises(phalanx.MismatchError):
            group.all_reduce(torch.ones(3))


@worlds(2)
def test_a_work_may_be_dropped_and_still_happens(group: SharedMemoryGroup) -> None:
    tensor = torch.ones(50_000)
    for _ in range(10):
        group.all_reduce(tensor, async_op=True)
    group.barrier()
    same(tensor, torch.full((50_000,), 2.0**10))


@worlds(2)
def test_tensors_live_as_long_as_their_operation(group: SharedMemoryGroup) -> None:
    """The caller drops the tensor; the memory must not be somebody else's when the data arrives."""
    if group.rank == 0:
        works: list[Any] = [group.recv(torch.zeros(30_000), 1, tag, async_op=True) for tag in range(10)]
        bystanders = [torch.zeros(30_000) for _ in range(10)]
        group.barrier()
        for work in works:
            same(work.result(), torch.full((30_000,), 7.0))
        for bystander in bystanders:
            same(bystander, torch.zeros(30_000))
    else:
        group.barrier()
        for tag in range(10):
            group.send(torch.full((30_000,), 7.0), 0, tag)


@worlds(2)
@pytest.mark.host_memory("the caller lends the memory of a device and takes it back when the operation is over")
def test_an_operation_keeps_the_memory_of_its_tensors(group: SharedMemoryGroup) -> None:
    """The program may clear the list that it gave, and give a tensor other memory, before it waits."""
    first = torch.ones(3)
    listed, gathered = [first.clone()], [torch.zeros(3) for _ in range(group.size)]
    memory = [StorageWeakRef(tensor.untyped_storage()) for tensor in (first, *listed, *gathered)]
    works = [
        group.all_reduce(first, async_op=True),
        group.all_reduce_coalesced(listed, async_op=True),
        group.all_gather(gathered, torch.ones(3), async_op=True),
    ]
    first.data = torch.zeros(1)
    listed.clear()
    gathered.clear()
    assert not any(storage.expired() for storage in memory)
    for work in works:
        work.wait()


@worlds(2)
@pytest.mark.host_memory("the caller lends the memory of a device and takes it back when the operation is over")
def test_a_message_keeps_the_memory_of_its_tensor(group: SharedMemoryGroup) -> None:
    peer, target = 1 - group.rank, torch.empty_strided((3, 2), (1, 3))
    memory = StorageWeakRef(target.untyped_storage())
    received = group.recv(target, peer, async_op=True)
    target.data = torch.zeros(1)
    group.send(torch.ones(3, 2), peer)
    group.barrier()  # lets go of messages that are done
    assert not memory.expired(), "the received elements are put in their places by wait()"
    received.wait()

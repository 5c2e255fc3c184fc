from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.reference import DTYPES, values
from tests.worlds import every_world, worlds

MANY_SIZES = (0, 1, 63, 64, 65, 4096, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 128 * 1024, 1 << 20, (1 << 20) + 1, 3 << 20)


@every_world
def test_every_ordered_pair_exchanges_messages(group: SharedMemoryGroup) -> None:
    for source in range(group.size):
        for target in range(group.size):
            cube = (source + 1,) * 3
            if source == target:
                continue
            if group.rank == source:
                assert group.send(torch.full(cube, float(source)), target) is None
            if group.rank == target:
                tensor = torch.full(cube, -1.0)
                assert group.recv(tensor, source) == source, "recv tells the source"
                same(tensor, torch.full(cube, float(source)))


@worlds(2, 3)
def test_messages_of_every_type_and_size_arrive(group: SharedMemoryGroup) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for dtype in DTYPES:
        sent = group.send(values(dtype, (3, 3), group.rank), right, async_op=True)
        tensor = torch.zeros(3, 3).to(dtype)
        group.recv(tensor, left)
        sent.wait()
        same(tensor, values(dtype, (3, 3), left), dtype)
    for size in MANY_SIZES:
        sent = group.send(values(torch.uint8, size, group.rank), right, async_op=True)
        tensor = torch.zeros(size, dtype=torch.uint8)
        group.recv(tensor, left)
        sent.wait()
        same(tensor, values(torch.uint8, size, left), size)


@worlds(2)
@pytest.mark.slow
def test_blocking_messages_of_many_mebibytes_arrive(group: SharedMemoryGroup) -> None:
    for size in ((5 << 20) + 3, 20 << 20):
        data = values(torch.uint8, size, 1)
        if group.rank == 0:
            group.send(data, 1)
            group.recv(torch.empty(0), 1)
        else:
            tensor = torch.zeros(size, dtype=torch.uint8)
            group.recv(tensor, 0)
            same(tensor, data, size)
            group.send(torch.empty(0), 0)


@worlds(2, 3)
def test_messages_match_by_tag_in_any_order(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        for size in (1, 200_000):
            works = [group.send(torch.full((size,), float(tag)), 1, tag, async_op=True) for tag in range(6)]
            for work in works:
                work.wait()
    elif group.rank == 1:
        for size in (1, 200_000):
            for tag in (2, 1, 5, 0, 4, 3):
                tensor = torch.zeros(size)
                assert group.recv(tensor, 0, tag) == 0
                same(tensor, torch.full((size,), float(tag)), tag)


@worlds(2)
def test_messages_of_one_tag_arrive_in_the_order_they_were_sent(group: SharedMemoryGroup) -> None:
    """Small ones overtake large ones inside; the receiver must not see it."""
    sizes = [1, 300_000, 2, 100_000, 0, 3, 20_000, 1] * 4
    if group.rank == 0:
        works = [group.send(torch.full((size,), float(i)), 1, async_op=True) for i, size in enumerate(sizes)]
        for work in works:
            work.wait()
    else:
        for number, size in enumerate(sizes):
            tensor = torch.full((size,), -1.0)
            group.recv(tensor, 0)
            same(tensor, torch.full((size,), float(number)), number)


@worlds(2, 3, 4)
def test_receiving_from_anybody_tells_the_source(group: SharedMemoryGroup) -> None:
    """FEATURES.md B2: two messages per peer, one for a blocking and one for an asynchronous receive."""
    sources = []
    peers = [rank for rank in range(group.size) if rank != group.rank]
    sends = [group.send(torch.full((3,), float(group.rank)), peer, async_op=True) for peer in peers * 2]
    for number in range(2 * len(peers)):
        tensor = torch.full((3,), -1.0)
        if number % 2 == 0:
            source = group.recv(tensor)
        else:
            work = group.recv(tensor, None, async_op=True)
            work.wait()
            told = work.source_rank()
            assert told is not None
            source = told
        same(tensor, torch.full((3,), float(source)))
        sources.append(source)
    for send in sends:
        send.wait()
    assert sorted(sources) == sorted(peers * 2)


@every_world
def test_outstanding_messages_complete_in_any_order(group: SharedMemoryGroup) -> None:
    tensors = {peer: torch.zeros(1000) for peer in range(group.size)}
    receives = {peer: group.recv(tensors[peer], peer, async_op=True) for peer in tensors}
    sends = [
        group.send(torch.full((1000,), float(group.rank)), peer, async_op=True) for peer in reversed(range(group.size))
    ]
    for peer in reversed(range(group.size)):
        receives[peer].wait()
        assert receives[peer].done()
        assert receives[peer].source_rank() == peer
        same(receives[peer].result(), torch.full((1000,), float(peer)), peer)
    for send in sends:
        send.wait()
        assert send.done()
        assert send.exception() is None


@every_world
def test_batches_do_not_deadlock_whatever_their_order(group: SharedMemoryGroup) -> None:
    """Even ranks send first, odd ones receive first; the messages are too large to be buffered."""
    n, me = group.size, group.rank
    for size in (3, 700_000):
        received = [torch.zeros(size) for _ in range(n)]
        given = torch.full((size,), float(me))
        sends: list[Any] = [partial(group.send, given, peer, async_op=True) for peer in range(n)]
        receives: list[Any] = [partial(group.recv, received[peer], peer, async_op=True) for peer in range(n)]
        batch = sends + receives if me % 2 == 0 else receives + sends
        for work in [start() for start in batch]:
            work.wait()
        for peer in range(n):
            same(received[peer], torch.full((size,), float(peer)), (size, peer))


@every_world
def test_a_ring_passes_values_all_the_way_round(group: SharedMemoryGroup) -> None:
    n = group.size
    right, left = (group.rank + 1) % n, (group.rank - 1) % n
    carried, total = torch.full((20_000,), float(group.rank)), torch.zeros(20_000)
    for _ in range(n):
        total += carried
        arriving = torch.empty_like(carried)
        receive = group.recv(arriving, left, async_op=True)
        group.send(carried, right, async_op=True).wait()
        receive.wait()
        carried = arriving
    same(total, torch.full((20_000,), n * (n - 1) / 2))
    same(carried, torch.full((20_000,), float(group.rank)), "back home")


@every_world
def test_a_rank_may_send_to_itself_when_it_does_not_block(group: SharedMemoryGroup) -> None:
    me = group.rank
    for size in (2, 500_000):
        tensor = torch.zeros(size)
        send = group.send(torch.full((size,), 5.0), me, 3, async_op=True)
        group.recv(tensor, me, 3, async_op=True).wait()
        send.wait()
        same(tensor, torch.full((size,), 5.0))
        receive = group.recv(tensor, me, 4, async_op=True)
        group.send(torch.full((size,), 6.0), me, 4, async_op=True).wait()
        receive.wait()
        same(tensor, torch.full((size,), 6.0))
    with pytest.raises(phalanx.UsageError, match="destination rank should not be the same"):
        group.send(torch.ones(1), me)
    with pytest.raises(phalanx.UsageError, match="source rank should not be the same"):
        group.recv(torch.ones(1), me)


@worlds(3, 4)
def test_some_ranks_may_exchange_messages_without_the_others(group: SharedMemoryGroup) -> None:
    if group.rank in (1, 2):
        tensor = torch.zeros(4)
        receive = group.recv(tensor, 3 - group.rank, async_op=True)
        group.send(torch.full((4,), float(group.rank)), 3 - group.rank)
        receive.wait()
        same(tensor, torch.full((4,), 3.0 - group.rank))


@worlds(2)
def test_messages_pass_while_a_collective_waits(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        work = group.barrier(async_op=True)
        group.send(torch.ones(100_000), 1)
        work.wait()
    else:
        tensor = torch.zeros(100_000)
        group.recv(tensor, 0)
        same(tensor, torch.ones(100_000))
        group.barrier()


@worlds(2)
def test_more_messages_than_a_channel_holds_wait_their_turn(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        works = [group.send(torch.tensor([float(number)]), 1, async_op=True) for number in range(500)]
        for work in works:
            work.wait()
    else:
        for number in range(500):
            tensor = torch.zeros(1)
            group.recv(tensor, 0)
            assert float(tensor) == float(number)


@worlds(2)
@pytest.mark.parametrize("sent", [4, 2_000_000])
@pytest.mark.parametrize("room", [2, 1_000_000])
def test_a_buffer_of_another_size_raises_on_the_receiver(group: SharedMemoryGroup, sent: int, room: int) -> None:
    if group.rank == 0:
        work = group.send(torch.ones(sent), 1, async_op=True)
        if sent == 4:  # it went with the post, before anybody could refuse it
            work.wait()
        else:
            with pytest.raises(phalanx.MismatchError, match="send") as refused:
                work.wait()
            assert "rank 1" in str(refused.value)
            assert refused.value.culprits == (1,)
    else:
        with pytest.raises(phalanx.MismatchError) as caught:
            group.recv(torch.zeros(room), 0)
        assert "recv" in str(caught.value)
        assert "the message and the buffer differ (rank 0)" in str(caught.value)
        assert f"float32 ({room},)" in str(caught.value)
        assert f"sent {sent * 4} bytes" in str(caught.value)
        assert (caught.value.operation, caught.value.culprits, caught.value.rank) == ("recv", (0,), 1)
    # The group goes on: the bad message is gone and the next one arrives.
    if group.rank == 0:
        group.send(torch.full((9,), 9.0), 1)
    else:
        tensor = torch.zeros(9)
        group.recv(tensor, 0)
        same(tensor, torch.full((9,), 9.0))
    group.barrier()


@worlds(2)
def test_a_buffer_of_another_type_raises_on_the_receiver(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        group.send(torch.ones(2, dtype=torch.int32), 1, async_op=True)
    else:
        with pytest.raises(phalanx.MismatchError) as caught:
            group.recv(torch.zeros(2), 0)
        assert "of another size or dtype" in str(caught.value)
        assert "receive into a tensor of the sent shape and dtype" in str(caught.value)
    group.barrier()

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

import phalanx
from tests.checks import check, contains, equal, raised, same
from tests.reference import DTYPES, values
from tests.run_ranks import World, every_world, worlds

MANY_SIZES = (0, 1, 63, 64, 65, 4096, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 128 * 1024, 1 << 20, (1 << 20) + 1, 3 << 20)


@every_world
def test_every_ordered_pair_exchanges_messages(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        for source in range(group.size):
            for target in range(group.size):
                cube = (source + 1,) * 3
                if source == target:
                    continue
                if group.rank == source:
                    equal(group.send(torch.full(cube, float(source)), target), None)
                if group.rank == target:
                    tensor = torch.full(cube, -1.0)
                    equal(group.recv(tensor, source), source, "recv tells the source")
                    same(tensor, torch.full(cube, float(source)))

    world.run(program)


@worlds(2, 3)
def test_messages_of_every_type_and_size_arrive(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
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

    world.run(program)


@worlds(2)
@pytest.mark.slow
def test_blocking_messages_of_many_mebibytes_arrive(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
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

    world.run(program)


@worlds(2, 3)
def test_messages_match_by_tag_in_any_order(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank == 0:
            for size in (1, 200_000):
                works = [group.send(torch.full((size,), float(tag)), 1, tag, async_op=True) for tag in range(6)]
                for work in works:
                    work.wait()
        elif group.rank == 1:
            for size in (1, 200_000):
                for tag in (2, 1, 5, 0, 4, 3):
                    tensor = torch.zeros(size)
                    equal(group.recv(tensor, 0, tag), 0)
                    same(tensor, torch.full((size,), float(tag)), tag)

    world.run(program)


@worlds(2)
def test_messages_of_one_tag_arrive_in_the_order_they_were_sent(world: World) -> None:
    """Small ones overtake large ones inside; the receiver must not see it."""

    def program() -> None:
        group = phalanx.connect()
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

    world.run(program)


@worlds(2, 3, 4)
def test_receiving_from_anybody_tells_the_source(world: World) -> None:
    """FEATURES.md B2: two messages per peer, one for a blocking and one for an asynchronous receive."""

    def program() -> list[int]:
        group = phalanx.connect()
        sources = []
        peers = [rank for rank in range(group.size) if rank != group.rank]
        sends = [group.send(torch.full((3,), float(group.rank)), peer, async_op=True) for peer in peers * 2]
        for number in range(2 * len(peers)):
            tensor = torch.full((3,), -1.0)
            if number % 2 == 0:
                source: Any = group.recv(tensor)
            else:
                work: Any = group.recv(tensor, None, async_op=True)
                work.wait()
                source = work.source_rank()
            same(tensor, torch.full((3,), float(source)))
            sources.append(source)
        for send in sends:
            send.wait()
        return sources

    counts = Counter(source for sources in world.run(program) for source in sources)
    assert counts == dict.fromkeys(range(world.ranks), 2 * (world.ranks - 1))


@every_world
def test_outstanding_messages_complete_in_any_order(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        tensors = {peer: torch.zeros(1000) for peer in range(group.size)}
        receives = {peer: group.recv(tensors[peer], peer, async_op=True) for peer in tensors}
        sends = [
            group.send(torch.full((1000,), float(group.rank)), peer, async_op=True)
            for peer in reversed(range(group.size))
        ]
        for peer in reversed(range(group.size)):
            receives[peer].wait()
            check(receives[peer].done())
            equal(receives[peer].source_rank(), peer)
            same(receives[peer].result(), torch.full((1000,), float(peer)), peer)
        for send in sends:
            send.wait()
            check(send.done() and send.exception() is None)

    world.run(program)


@every_world
def test_batches_do_not_deadlock_whatever_their_order(world: World) -> None:
    """Even ranks send first, odd ones receive first; the messages are too large to be buffered."""

    def program() -> None:
        group = phalanx.connect()
        n, me = group.size, group.rank
        for size in (3, 700_000):
            received = [torch.zeros(size) for _ in range(n)]
            given = torch.full((size,), float(me))
            sends = [partial(group.send, given, peer, async_op=True) for peer in range(n)]
            receives = [partial(group.recv, received[peer], peer, async_op=True) for peer in range(n)]
            batch = sends + receives if me % 2 == 0 else receives + sends
            for work in [start() for start in batch]:
                work.wait()
            for peer in range(n):
                same(received[peer], torch.full((size,), float(peer)), (size, peer))

    world.run(program)


@every_world
def test_a_ring_passes_values_all_the_way_round(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
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

    world.run(program)


@every_world
def test_a_rank_may_send_to_itself_when_it_does_not_block(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
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
        contains(raised(phalanx.UsageError, group.send, torch.ones(1), me), "destination rank should not be the same")
        contains(raised(phalanx.UsageError, group.recv, torch.ones(1), me), "source rank should not be the same")

    world.run(program)


@worlds(3, 4)
def test_some_ranks_may_exchange_messages_without_the_others(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank in (1, 2):
            tensor = torch.zeros(4)
            receive = group.recv(tensor, 3 - group.rank, async_op=True)
            group.send(torch.full((4,), float(group.rank)), 3 - group.rank)
            receive.wait()
            same(tensor, torch.full((4,), 3.0 - group.rank))

    world.run(program)


@worlds(2)
def test_messages_pass_while_a_collective_waits(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank == 0:
            work = group.barrier(async_op=True)
            group.send(torch.ones(100_000), 1)
            work.wait()
        else:
            tensor = torch.zeros(100_000)
            group.recv(tensor, 0)
            same(tensor, torch.ones(100_000))
            group.barrier()

    world.run(program)


@worlds(2)
def test_more_messages_than_a_channel_holds_wait_their_turn(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank == 0:
            works = [group.send(torch.tensor([float(number)]), 1, async_op=True) for number in range(500)]
            for work in works:
                work.wait()
        else:
            for number in range(500):
                tensor = torch.zeros(1)
                group.recv(tensor, 0)
                equal(float(tensor), float(number))

    world.run(program)


@worlds(2)
@pytest.mark.parametrize("sent", [4, 2_000_000])
@pytest.mark.parametrize("room", [2, 1_000_000])
def test_a_buffer_of_another_size_raises_on_the_receiver(world: World, sent: int, room: int) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=20)
        if group.rank == 0:
            work = group.send(torch.ones(sent), 1, async_op=True)
            try:
                work.wait()
            except phalanx.MismatchError as refusal:
                contains(refusal, "send", "rank 1")
                equal(refusal.culprits, (1,))
        else:
            error = raised(phalanx.MismatchError, group.recv, torch.zeros(room), 0)
            contains(
                error,
                "recv",
                "the message and the buffer differ (rank 0)",
                f"float32 ({room},)",
                f"sent {sent * 4} bytes",
            )
            equal((error.operation, error.culprits, error.rank), ("recv", (0,), 1))
        # The group goes on: the bad message is gone and the next one arrives.
        if group.rank == 0:
            group.send(torch.full((9,), 9.0), 1)
        else:
            tensor = torch.zeros(9)
            group.recv(tensor, 0)
            same(tensor, torch.full((9,), 9.0))
        group.barrier()

    world.run(program)


@worlds(2)
def test_a_buffer_of_another_type_raises_on_the_receiver(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=20)
        if group.rank == 0:
            group.send(torch.ones(2, dtype=torch.int32), 1, async_op=True)
        else:
            error = raised(phalanx.MismatchError, group.recv, torch.zeros(2), 0)
            contains(error, "of another size or dtype", "receive into a tensor of the sent shape and dtype")
        group.barrier()

    world.run(program)

"""Messages of CUDA tensors: the receiver copies from the sender's memory, or the data goes through the host.

What messages do on every device is tested by the battery; see test_battery.py.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.timeline.spans import read_spans
from phalanx.timeline.traffic import count_traffic
from phalanx.timeline.waits import find_waits
from tests.on_simulated_gpu.simulated_ranks import (
    SimulatedRanks,
    failure_of,
    needs_simulator,
    num_mappings,
    stall_stream,
)
from tests.run_ranks import Kind, every_kind

pytestmark = [needs_simulator, pytest.mark.slow]

_SMALL = 64 * 1024  # up to that many bytes a send does not wait for its receive
_SIZES = (0, 1, 4, _SMALL - 1, _SMALL, _SMALL + 1, (3 << 20) + 5)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedRanks:
    return SimulatedRanks(monkeypatch)


def _bytes(size: int, seed: int) -> torch.Tensor:
    return ((torch.arange(size) * 31 + seed * 7) % 251).to(torch.uint8)


def _round_the_ring(group: SharedMemoryGroup, device: str = "cuda:0") -> bool:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for size in _SIZES:
        received = [torch.full((size,), 255, dtype=torch.uint8, device=device) for _ in range(2)]
        receive = group.recv(received[0], left, async_op=True)
        group.send(_bytes(size, group.rank).to(device), right)
        receive.wait()
        send = group.send(_bytes(size, group.rank).to(device), right, 1, async_op=True)
        assert group.recv(received[1], None, 1) == left
        send.wait()
        for tensor in received:
            assert torch.equal(tensor.cpu(), _bytes(size, left)), size
    _pass_pieces(group, device)
    return True


def _pass_pieces(group: SharedMemoryGroup, device: str) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for rows in (3, 3000):
        own = (torch.arange(rows * 20.0, device=device) + group.rank).reshape(rows, 20)
        room = torch.zeros(20, rows, device=device)
        send = group.send(own[:, ::2], right, async_op=True)
        group.recv(room.t()[:, 10:], left)
        send.wait()
        expected = (torch.arange(rows * 20.0) + left).reshape(rows, 20)[:, ::2]
        assert torch.equal(room.t()[:, 10:].cpu(), expected)
        assert not room.t()[:, :10].any()


@every_kind
@pytest.mark.parametrize("ranks", [2, 3])
def test_cuda_tensors_of_every_size_and_layout_arrive(simulated: SimulatedRanks, kind: Kind, ranks: int) -> None:
    assert all(simulated.run(kind, ranks, _round_the_ring))


@pytest.mark.parametrize("switch", ["NO_IPC", "NOT_EXPORTABLE"])
def test_messages_go_through_the_host_where_memory_cannot_be_shared(simulated: SimulatedRanks, switch: str) -> None:
    assert all(simulated.run("process", 2, _round_the_ring, **{switch: 1}))


@every_kind
def test_a_message_is_there_when_the_call_returns_although_copies_take_their_time(
    simulated: SimulatedRanks, kind: Kind
) -> None:
    assert all(simulated.run(kind, 2, _round_the_ring, DELAY_US=2000))


def _on_its_own_gpu(group: SharedMemoryGroup) -> bool:
    return _round_the_ring(group, f"cuda:{group.rank}")


@every_kind
@pytest.mark.parametrize("switches", [{}, {"NO_PEER": 1}], ids=["peer access", "no peer access"])
def test_messages_pass_between_gpus(simulated: SimulatedRanks, kind: Kind, switches: dict[str, int]) -> None:
    assert all(simulated.run(kind, 2, _on_its_own_gpu, gpus=2, **switches))


def _beside_collectives(group: SharedMemoryGroup) -> bool:
    peer = 1 - group.rank
    for step in range(30):
        size = 10 if step % 2 == 0 else 100_000
        received, total = torch.zeros(size, device="cuda"), torch.ones(size, device="cuda")
        works = [
            group.recv(received, peer, async_op=True),
            group.all_reduce(total, async_op=True),
            group.send(torch.full((size,), float(step), device="cuda"), peer, async_op=True),
        ]
        for work in works:
            work.wait()
        assert (received == step).all()
        assert (total == 2).all()
    return True


@every_kind
def test_messages_and_collectives_run_at_the_same_time(simulated: SimulatedRanks, kind: Kind) -> None:
    assert all(simulated.run(kind, 2, _beside_collectives))


def _forgotten(group: SharedMemoryGroup) -> bool:
    peer = 1 - group.rank
    received = torch.zeros(1 << 20, device="cuda")
    receive = group.recv(received, peer, async_op=True)
    sent = torch.full((1 << 20,), 7.0, device="cuda")
    group.send(sent, peer, async_op=True)
    del sent
    gc.collect()
    others = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(3)]
    receive.wait()
    group.barrier()
    return bool((received == 7).all()) and all((other == -1).all() for other in others)


def test_a_tensor_that_is_sent_stays_although_nobody_holds_it(simulated: SimulatedRanks) -> None:
    assert all(simulated.run("process", 2, _forgotten, DELAY_US=3000))


def _openings(group: SharedMemoryGroup) -> list[int]:
    big = [torch.ones(1 << 21, device="cuda") for _ in range(3)]  # of 8 MiB: an allocation of the driver each
    for tensor in (*big, *big):
        if group.rank == 0:
            group.send(tensor, 1)
        else:
            group.recv(tensor, 0)
    counts = [num_mappings()]
    group.close()
    return [*counts, num_mappings()]


def test_the_receiver_opens_memory_once_and_closes_it_with_the_group(simulated: SimulatedRanks) -> None:
    assert simulated.run("process", 2, _openings) == [[0, 0], [3, 0]]


def _traced(group: SharedMemoryGroup, folder: str) -> None:
    with phalanx.trace(folder):
        for size in (4, 100_000):
            if group.rank == 0:
                group.send(torch.ones(size, device="cuda"), 1, tag=3)
            else:
                group.recv(torch.ones(size, device="cuda"), None, tag=3)
        group.barrier()


def test_the_timeline_has_each_message_once_as_the_program_made_it(simulated: SimulatedRanks, tmp_path: Path) -> None:
    simulated.run("process", 2, _traced, str(tmp_path))
    timeline = read_spans(tmp_path)
    messages = [span for span in timeline.spans if span.call.tag is not None]
    assert [(span.rank, span.call.operation, span.call.tag, span.call.shape, span.peer) for span in messages] == [
        (rank, operation, 3, (size,), 1 - rank)
        for rank, operation in ((0, "send"), (1, "recv"))
        for size in (4, 100_000)
    ]
    assert all(span.is_finished for span in messages)
    find_waits(timeline)
    assert count_traffic(timeline) == {(0, 1): 4 * 100_004}


def _nobody_receives(group: SharedMemoryGroup) -> str:
    if group.rank == 0:
        error = failure_of(group, lambda: group.send(torch.ones(100_000, device="cuda"), 1, 6, timeout_s=0.5))
        assert isinstance(error, phalanx.OperationTimeoutError)
        return str(error)
    return str(failure_of(group, lambda: group.recv(torch.ones(100_000, device="cuda"), 0, 7, timeout_s=30)))


def test_a_send_that_nobody_receives_names_who_should_have(simulated: SimulatedRanks) -> None:
    sender, receiver = simulated.run("process", 2, _nobody_receives)
    assert "waiting for rank 1: rank 1 has not received it" in sender
    assert "rank 0 of 2 sends float32 (100000,) on cuda, tag 6" in sender
    assert "rank 0 timed out" in receiver


def _nobody_sends(group: SharedMemoryGroup) -> str:
    tensor = torch.ones(100_000, device="cuda")
    error = failure_of(group, lambda: group.recv(tensor, 1 - group.rank, timeout_s=0.3))
    work = group.recv(tensor, 1 - group.rank, async_op=True, timeout_s=0.3)
    failure_of(group, work.wait)
    assert isinstance(work.exception(), phalanx.OperationTimeoutError)
    group.all_reduce(tensor)  # the group goes on
    return str(error)


@every_kind
def test_a_receive_that_finds_nothing_times_out_and_the_group_goes_on(simulated: SimulatedRanks, kind: Kind) -> None:
    first, second = simulated.run(kind, 2, _nobody_sends)
    assert "rank 1 has not sent it" in first
    assert "rank 0 has not sent it" in second


def _other_memory(group: SharedMemoryGroup) -> str:
    tensor = torch.ones(4, device="cuda" if group.rank == 0 else "cpu")
    if group.rank == 0:
        group.send(tensor, 1)
        group.barrier()
        return ""
    error = failure_of(group, lambda: group.recv(tensor, 0, timeout_s=0.3))
    group.barrier()
    return str(error)


def test_a_host_tensor_does_not_receive_what_was_sent_from_a_gpu(simulated: SimulatedRanks) -> None:
    assert "timed out" in simulated.run("process", 2, _other_memory)[1]


def _killed(group: SharedMemoryGroup, victim: int, folder: str) -> None:
    tensor = torch.ones(1 << 20, device="cuda")
    others = [rank for rank in range(3) if rank != victim]
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    move = group.send if group.rank == others[0] else group.recv
    text = str(failure_of(group, lambda: move(tensor, victim, timeout_s=30)))
    survivors = group.shrink()
    if survivors.rank == 0:
        survivors.send(tensor, 1)
    else:
        survivors.recv(tensor, 0)
    (Path(folder) / str(group.rank)).write_text(text)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_peer_is_named_and_the_others_go_on_without_it(
    simulated: SimulatedRanks, victim: int, tmp_path: Path
) -> None:
    simulated.check_that_survivors_name(victim, _killed, tmp_path)


def _closed(group: SharedMemoryGroup) -> str:
    work = group.recv(torch.ones(4, device="cuda"), 0, 9, async_op=True)
    group.close()
    return str(work.exception())


def test_closing_the_group_ends_messages_under_way(simulated: SimulatedRanks) -> None:
    assert "recv" in simulated.run("process", 1, _closed)[0]


def _many_dimensions(group: SharedMemoryGroup) -> str:
    tensor = torch.ones([3] * 9, device="cuda")[(slice(None, None, 2),) * 9]
    if group.rank == 0:
        return str(failure_of(group, lambda: group.send(tensor, 1)))
    return str(failure_of(group, lambda: group.recv(tensor, 0)))


def test_pieces_along_too_many_dimensions_are_refused(simulated: SimulatedRanks) -> None:
    assert all("along more than 8 dimensions" in text for text in simulated.run("process", 2, _many_dimensions))


def _fork_with_a_send_under_way(group: SharedMemoryGroup) -> bool:
    tensor = torch.full((100_000,), float(group.rank), device="cuda")
    if group.rank == 1:
        assert group.recv(tensor, 0, timeout_s=20) == 0
        return bool((tensor.cpu() == 0).all())
    work = group.send(tensor, 1, async_op=True)
    child = os.fork()
    if child == 0:
        try:
            failure_of(group, lambda: work.wait(3))  # nobody would end it there
            group.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    work.wait(20)
    return True


def test_a_forked_child_leaves_messages_of_its_parent_alone(simulated: SimulatedRanks) -> None:
    assert all(simulated.run("process", 2, _fork_with_a_send_under_way, DELAY_US=200_000))


def _late_gpu(group: SharedMemoryGroup, size: int) -> str:
    tensor = torch.ones(size, device="cuda")
    if group.rank == 1:
        return str(failure_of(group, lambda: group.recv(tensor, 0, timeout_s=30)))
    stall_stream(2.0)
    return str(failure_of(group, lambda: group.send(tensor, 1, timeout_s=0.4)))


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_send_behind_a_gpu_that_is_busy_for_too_long_times_out_with_the_reason(
    simulated: SimulatedRanks, size: int
) -> None:
    for text in simulated.run("process", 2, _late_gpu, size):
        assert "the GPU has not finished what rank 0 gave it before this call" in text


def _other_devices(group: SharedMemoryGroup) -> str:
    if group.rank == 0:
        return str(failure_of(group, lambda: group.send(torch.ones(100_000, device="cuda"), 1, timeout_s=0.5)))
    return str(failure_of(group, lambda: group.recv(torch.ones(100_000), 0, timeout_s=20)))


def test_a_message_between_a_gpu_and_the_host_is_told_as_such(simulated: SimulatedRanks) -> None:
    sender, _ = simulated.run("process", 2, _other_devices)
    assert "rank 1 has a tensor on cpu, this rank one on cuda" in sender
    assert "cycle" not in sender

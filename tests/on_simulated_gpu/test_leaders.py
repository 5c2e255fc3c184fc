"""Collectives of CUDA tensors: ranks meet on the host, and one of them does the work of all."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import pytest
import torch

import phalanx
from phalanx import Group, ReduceOp
from tests.on_simulated_gpu.simulated_ranks import SimulatedRanks, failure_of, needs_simulator, num_mappings
from tests.run_ranks import Kind, every_kind

pytestmark = [needs_simulator, pytest.mark.slow]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedRanks:
    return SimulatedRanks(monkeypatch)


def _every_collective(group: Group, device: str = "cuda:0") -> bool:
    _reduce_and_copy(group, device)
    _exchange_blocks(group, device)
    _move_lists_and_pieces(group, device)
    return True


def _reduce_and_copy(group: Group, device: str) -> None:
    n, rank = group.size, group.rank
    own = torch.arange(1003, device=device) + 10_000 * rank
    everybody = [torch.arange(1003) + 10_000 * r for r in range(n)]

    reduced = own.clone()
    group.all_reduce(reduced)
    assert torch.equal(reduced.cpu(), torch.stack(everybody).sum(0))
    reduced = own.clone()
    group.reduce(reduced, n - 1, ReduceOp.MAX)
    assert torch.equal(reduced.cpu(), everybody[n - 1 if rank == n - 1 else rank])
    copied = own.clone()
    group.broadcast(copied, 0)
    assert torch.equal(copied.cpu(), everybody[0])
    outputs = [torch.full((1003,), -1, device=device) for _ in range(n)]
    group.all_gather(outputs, own)
    assert torch.equal(torch.stack(outputs).cpu(), torch.stack(everybody))
    output = torch.full((n, 1003), -1, device=device)
    group.all_gather_single(output, own)
    assert torch.equal(output.cpu(), torch.stack(everybody))
    group.gather(outputs if rank == 0 else None, own + 1, 0)
    if rank == 0:
        assert torch.equal(torch.stack(outputs).cpu(), torch.stack(everybody) + 1)


def _exchange_blocks(group: Group, device: str) -> None:
    n, rank = group.size, group.rank
    own = torch.arange(1003, device=device) + 10_000 * rank
    everybody = [torch.arange(1003) + 10_000 * r for r in range(n)]

    part = torch.full((1003,), -1, device=device)
    group.scatter(part, [own + r for r in range(n)] if rank == 0 else None, 0)
    assert torch.equal(part.cpu(), everybody[0] + rank)
    group.reduce_scatter(part, [own + r for r in range(n)])
    assert torch.equal(part.cpu(), torch.stack(everybody).sum(0) + n * rank)
    group.reduce_scatter_single(part, torch.cat([own + r for r in range(n)]))
    assert torch.equal(part.cpu(), torch.stack(everybody).sum(0) + n * rank)
    outputs = [torch.full((1003,), -1, device=device) for _ in range(n)]
    group.all_to_all(outputs, [own + r for r in range(n)])
    assert torch.equal(torch.stack(outputs).cpu(), torch.stack(everybody) + rank)


def _move_lists_and_pieces(group: Group, device: str) -> None:
    n, rank = group.size, group.rank
    splits = [r + rank for r in range(n)]
    room = torch.full((sum(splits),), -1.0, device=device)
    group.all_to_all_single(room, torch.full((sum(splits),), float(rank), device=device), splits, splits)
    assert room.tolist() == [float(r) for r in range(n) for _ in range(r + rank)]
    kinds = [(size, dtype) for size in (3, 0, 70) for dtype in (torch.half, torch.int8)]
    several = [torch.full((size,), rank + 1, dtype=dtype, device=device) for size, dtype in kinds]
    group.all_reduce_coalesced(several)
    for tensor in several:
        assert torch.equal(tensor.cpu(), torch.full(tensor.shape, n * (n + 1) // 2, dtype=tensor.dtype))
    pieces = (torch.arange(60.0, device=device) + rank).reshape(3, 4, 5).permute(2, 0, 1)[::2]
    expected = (torch.arange(60.0) * n + n * (n - 1) / 2).reshape(3, 4, 5).permute(2, 0, 1)[::2]
    group.all_reduce(pieces)
    assert torch.equal(pieces.cpu(), expected)


def _exchange_in_every_form(group: Group) -> bool:
    """Some ranks have even blocks, others uneven ones, lists, or a tensor in pieces."""
    n, rank, device = group.size, group.rank, "cuda:0"
    blocks = [[1, 1, 1], [1, 2, 3], [1, 3, 2]]  # from each rank to each, in units of 5
    given = torch.cat([torch.full((5 * count,), 10.0 * rank + to) for to, count in enumerate(blocks[rank])]).to(device)
    taken = [5 * blocks[source][rank] for source in range(n)]
    output = torch.full((sum(taken),), -1.0, device=device)
    group.all_to_all_single(output, given, taken, [5 * count for count in blocks[rank]])
    assert output.tolist() == [10.0 * source + rank for source in range(n) for _ in range(taken[source])]

    given, output = torch.arange(6.0, device=device) + 10 * rank, torch.full((6,), -1.0, device=device)
    if rank == 2:
        group.all_to_all(list(output.split(2)), list(given.split(2)))
    else:
        group.all_to_all_single(output, given)
    assert output.tolist() == [10.0 * source + 2 * rank + i for source in range(n) for i in range(2)]

    given = torch.arange(12.0, device=device).view(6, 2) + 100 * rank
    output = torch.full((2, 6), -1.0, device=device).t() if rank == 1 else torch.full((6, 2), -1.0, device=device)
    group.all_to_all_single(output, given)
    rows = [torch.arange(12.0).view(6, 2)[2 * rank : 2 * rank + 2] + 100 * source for source in range(n)]
    assert torch.equal(output.cpu(), torch.cat(rows))

    group.all_to_all_single(torch.empty(0, device=device), torch.empty(0, device=device))
    return True


@every_kind
@pytest.mark.parametrize("obstacle", ["", "NO_IPC", "NOT_EXPORTABLE"])
def test_ranks_exchange_blocks_in_different_forms(simulated: SimulatedRanks, kind: Kind, obstacle: str) -> None:
    obstacles = {obstacle: 1} if obstacle else {}
    assert simulated.run(kind, 3, _exchange_in_every_form, **obstacles) == [True] * 3


@every_kind
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_of_cuda_tensors_is_right(simulated: SimulatedRanks, kind: Kind, ranks: int) -> None:
    assert all(simulated.run(kind, ranks, _every_collective))


@every_kind
def test_results_are_there_when_the_call_returns_although_kernels_take_their_time(
    simulated: SimulatedRanks, kind: Kind
) -> None:
    assert all(simulated.run(kind, 3, _every_collective, DELAY_US=2000))


@pytest.mark.parametrize("switch", ["NO_IPC", "NOT_EXPORTABLE"])
def test_memory_that_cannot_be_shared_goes_through_the_host(simulated: SimulatedRanks, switch: str) -> None:
    assert all(simulated.run("process", 3, _every_collective, **{switch: 1}))


def _on_its_own_gpu(group: Group, num_gpus: int) -> bool:
    return _every_collective(group, f"cuda:{group.rank * num_gpus // group.size}")


@every_kind
@pytest.mark.parametrize("switches", [{}, {"NO_PEER": 1}], ids=["peer access", "no peer access"])
def test_ranks_on_several_gpus_have_a_leader_for_each(
    simulated: SimulatedRanks, kind: Kind, switches: dict[str, int]
) -> None:
    assert all(simulated.run(kind, 4, _on_its_own_gpu, 2, gpus=2, **switches))


def _beside_host_tensors(group: Group) -> bool:
    for step in range(20):
        works = []
        for device in ("cpu", "cuda:0"):
            tensor = torch.full((100 + step,), float(group.rank), device=device)
            works.append((group.all_reduce(tensor, async_op=True), tensor))
        for work, tensor in works:
            assert work is not None
            work.wait()
            assert (tensor.cpu() == group.size * (group.size - 1) / 2).all()
    return True


@every_kind
def test_tensors_of_the_host_and_of_gpus_take_turns_in_one_group(simulated: SimulatedRanks, kind: Kind) -> None:
    assert all(simulated.run(kind, 3, _beside_host_tensors))


def _in_place(group: Group) -> bool:
    n, rank = group.size, group.rank
    whole = torch.zeros(n, 7, device="cuda")
    whole[rank] = rank + 1.0
    group.all_gather_single(whole, whole[rank])
    assert torch.equal(whole.cpu(), torch.arange(1.0, n + 1)[:, None].expand(n, 7))
    blocks = torch.arange(n * 7.0, device="cuda").reshape(n, 7)
    group.reduce_scatter_single(blocks[rank], blocks)
    assert torch.equal(blocks[rank].cpu(), n * torch.arange(n * 7.0).reshape(n, 7)[rank])
    exchanged = torch.arange(n * 2, device="cuda") + 100 * rank
    group.all_to_all_single(exchanged, exchanged)
    assert exchanged.tolist() == [100 * r + 2 * rank + i for r in range(n) for i in range(2)]
    shifted = torch.arange(8.0, device="cuda") + rank
    group.all_gather([torch.empty(4, device="cuda") if r != rank else shifted[2:6] for r in range(n)], shifted[:4])
    assert shifted[2:6].tolist() == [rank + i for i in range(4)]
    return True


@every_kind
def test_outputs_may_lie_over_inputs(simulated: SimulatedRanks, kind: Kind) -> None:
    assert all(simulated.run(kind, 3, _in_place))


def _open_handles(group: Group) -> list[int]:
    counts = []
    big = [torch.ones(1 << 21, device="cuda") for _ in range(3)]  # of 8 MiB: an allocation of the driver each
    for tensor in (*big, *big):
        group.all_reduce(tensor)
    counts.append(num_mappings())
    group.close()
    counts.append(num_mappings())
    return counts


def test_memory_of_peers_is_opened_once_by_the_leader_alone_and_closed_with_the_group(
    simulated: SimulatedRanks,
) -> None:
    leader, *others = simulated.run("process", 3, _open_handles)
    assert leader == [6, 0]
    assert others == [[0, 0], [0, 0]]


def _mixed_devices(group: Group) -> str:
    tensor = torch.ones(4, device="cuda" if group.rank == 1 else "cpu")
    return str(failure_of(group, lambda: group.all_reduce(tensor, timeout_s=10)))


@every_kind
def test_a_host_tensor_on_one_rank_and_a_cuda_tensor_on_another_is_a_mismatch(
    simulated: SimulatedRanks, kind: Kind
) -> None:
    for text in simulated.run(kind, 2, _mixed_devices):
        assert "ranks disagree on device" in text
        assert "on cuda" in text


def _two_devices(group: Group) -> str:
    outputs = [torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")]
    return str(failure_of(group, lambda: group.all_gather(outputs, torch.ones(2, device="cuda:0"))))


def test_tensors_of_several_gpus_in_one_call_are_refused(simulated: SimulatedRanks) -> None:
    texts = simulated.run("process", 2, _two_devices, gpus=2)
    assert all("one tensor is on cuda:0 and another on cuda:1" in text for text in texts)


def _different_sizes(group: Group) -> str:
    tensor = torch.ones(4 + group.rank, device="cuda")
    text = str(failure_of(group, lambda: group.all_reduce(tensor, timeout_s=10)))
    assert (tensor.cpu() == 1).all()
    return text


def test_shapes_that_differ_are_a_mismatch_and_nothing_is_written(simulated: SimulatedRanks) -> None:
    assert all("shape" in text for text in simulated.run("process", 2, _different_sizes))


def _different_splits(group: Group) -> str:
    tensor = torch.ones(4, device="cuda")
    splits = [1, 3] if group.rank == 0 else [2, 2]
    return str(
        failure_of(group, lambda: group.all_to_all_single(torch.empty(4, device="cuda"), tensor, [2, 2], splits))
    )


def test_splits_that_differ_are_a_mismatch(simulated: SimulatedRanks) -> None:
    assert all("split sizes" in text for text in simulated.run("process", 2, _different_splits))


def _nobody_else_comes(group: Group) -> str:
    if group.rank == 0:
        return str(failure_of(group, lambda: group.all_reduce(torch.ones(4, device="cuda"), timeout_s=0.5)))
    return str(failure_of(group, lambda: group.barrier(timeout_s=30)))


def test_a_leader_that_waits_in_vain_names_who_is_missing(simulated: SimulatedRanks) -> None:
    first, second = simulated.run("process", 2, _nobody_else_comes)
    assert "rank 1" in first
    assert "all_reduce" in second


def _killed(group: Group, victim: int, folder: str) -> None:
    tensor = torch.ones(1 << 20, device="cuda")
    for step in range(5):
        group.all_reduce(tensor)
        tensor.fill_(step)
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    text = str(failure_of(group, lambda: group.all_reduce(tensor, timeout_s=30)))
    survivors = group.shrink()
    tensor.fill_(1.0)
    survivors.all_reduce(tensor)
    assert (tensor.cpu() == survivors.size).all()
    (Path(folder) / str(group.rank)).write_text(text)


@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "follower"])
def test_a_killed_rank_is_named_and_the_others_go_on_without_it(
    simulated: SimulatedRanks, victim: int, tmp_path: Path
) -> None:
    simulated.check_that_survivors_name(victim, _killed, tmp_path)


def _freed(group: Group) -> str:
    tensor = torch.ones(1 << 21, device="cuda")
    work = group.all_reduce(tensor, async_op=True)
    del tensor
    gc.collect()
    others = [torch.full((1 << 21,), -1.0, device="cuda") for _ in range(3)]
    assert work is not None
    (result,) = (work.result(),)
    assert (result.cpu() == group.size).all()
    assert all((other.cpu() == -1).all() for other in others)
    return "fine"


@every_kind
def test_tensors_stay_until_the_operation_is_over_though_nobody_holds_them(
    simulated: SimulatedRanks, kind: Kind
) -> None:
    assert simulated.run(kind, 2, _freed, DELAY_US=3000) == ["fine", "fine"]


def _one_cannot_open(group: Group) -> bool:
    if group.rank == 0:
        os.environ["SIMULATED_NO_IPC"] = "1"
    for _ in range(5):
        tensor = torch.full((100_000,), float(group.rank + 1), device=f"cuda:{group.rank // 2}")
        group.all_reduce(tensor)
        assert (tensor.cpu() == 10).all()
    return True


def test_when_one_of_two_leaders_cannot_open_memory_the_other_writes_nothing(simulated: SimulatedRanks) -> None:
    assert all(simulated.run("process", 4, _one_cannot_open, gpus=2))


def _mixed_list(group: Group) -> str:
    outputs = [torch.empty(2), torch.empty(2, device="cuda")]
    return str(failure_of(group, lambda: group.all_gather(outputs, torch.ones(2))))


def test_a_cuda_tensor_among_host_tensors_is_refused(simulated: SimulatedRanks) -> None:
    texts = simulated.run("process", 2, _mixed_list)
    assert all("one tensor is on the CPU and another on cuda:0" in text for text in texts)


def _lists_of_other_lengths(group: Group) -> str:
    sizes = (8, 0) if group.rank == 0 else (8,)
    tensors = [torch.ones(size, device="cuda") for size in sizes]
    return str(failure_of(group, lambda: group.all_reduce_coalesced(tensors)))


def test_lists_of_different_lengths_are_a_mismatch(simulated: SimulatedRanks) -> None:
    texts = simulated.run("process", 2, _lists_of_other_lengths)
    assert all("ranks disagree on the sizes of tensors" in text for text in texts)


def _busy_gpu(group: Group) -> tuple[float, str]:
    tensor = torch.ones(64, 32, device="cuda").t()  # its pack is slow, so the collective can't begin
    group.barrier()
    start = time.monotonic()
    text = str(failure_of(group, lambda: group.all_reduce(tensor, timeout_s=0.5)))
    return time.monotonic() - start, text


@every_kind
def test_a_gpu_that_is_busy_for_too_long_is_named_in_time(simulated: SimulatedRanks, kind: Kind) -> None:
    outcomes = simulated.run(kind, 2, _busy_gpu, DELAY_US=4_000_000)
    assert all(seconds < 3 for seconds, _ in outcomes)
    assert any("the GPU has not finished what rank" in text for _, text in outcomes)


def _reuse_after_a_timeout(group: Group) -> bool:
    other = group.split(range(group.size))
    assert other is not None
    failure_of(group, lambda: group.all_reduce(torch.full((64, 32), 500.0, device="cuda").t(), timeout_s=0.3))
    tensor = torch.ones(64, 32, device="cuda").t()
    other.all_reduce(tensor, timeout_s=30)
    assert (tensor.cpu() == group.size).all()
    return True


def test_memory_of_a_broken_operation_is_not_used_before_the_gpu_is_done_with_it(simulated: SimulatedRanks) -> None:
    assert all(simulated.run("process", 2, _reuse_after_a_timeout, DELAY_US=1_000_000))


def _interrupted(group: Group) -> bool:
    """A signal handler holds rank 1 while all others arrive; then it raises."""
    tensor = torch.ones(1 << 16, device="cuda")
    group.all_reduce(tensor)
    group.barrier()
    if group.rank == 1:
        signal.signal(signal.SIGALRM, _raise_late)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    if group.rank == 2:
        time.sleep(0.6)  # until rank 1 is in its handler
    try:
        group.all_reduce(tensor, timeout_s=20)
    except (KeyboardInterrupt, phalanx.PhalanxError):
        tensor.fill_(-7.0)
        time.sleep(1.0)
        assert (tensor.cpu() == -7).all()
    return True


def _raise_late(*_: object) -> None:
    time.sleep(1.0)
    raise KeyboardInterrupt


def test_nobody_writes_the_memory_of_a_rank_that_was_interrupted(simulated: SimulatedRanks) -> None:
    assert all(simulated.run("process", 3, _interrupted, DELAY_US=300_000))


def _many_groups(group: Group) -> list[int]:
    counts = []
    for _ in range(12):
        part = group.split(range(group.size))
        assert part is not None
        part.all_reduce(torch.ones(4, device="cuda"))
        part.close()
        counts.append(len(os.listdir("/proc/self/task")))
    return counts


def test_groups_that_come_and_go_leave_no_streams_behind(simulated: SimulatedRanks) -> None:
    for counts in simulated.run("process", 2, _many_groups, DELAY_US=1):
        assert counts[-1] <= counts[1], counts

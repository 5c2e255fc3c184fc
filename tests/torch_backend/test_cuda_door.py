"""The door for GPUs whose work goes on behind the host, with virtual ones in their place."""

from __future__ import annotations

import copy
import functools
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import phalanx
from phalanx.groups import stream_order
from phalanx.real_gpus import discovery
from phalanx.settings import set_environment
from phalanx.torch_backend import autoload
from phalanx.torch_backend.cuda_order import CudaStreamOrder, serve_cuda
from phalanx.torch_backend.thread_worlds import thread_worlds
from phalanx.torch_backend.untyped import dist
from tests.cuda_simulator.build import build_simulator, has_compiler, user_folder
from tests.torch_training.averaging_hook import register_averaging_hook
from tests.virtual_gpus.in_child import in_child, on_virtual_devices

_LARGE = 1 << 16


@pytest.fixture(scope="session")
def simulator() -> str:
    """The simulated driver, which ranks alone load."""
    return str(build_simulator(user_folder())) if has_compiler() else ""


@pytest.fixture(params=["host_memory", pytest.param("simulated_driver", marks=pytest.mark.slow)])
def gpu(request: pytest.FixtureRequest, simulator: str, rank: int) -> torch.device:
    """One GPU for all ranks, which groups take for a real one. What needs `rank` runs on the ranks alone."""
    if request.param == "simulated_driver":
        if not simulator:
            pytest.skip("there is no g++, which builds the simulated CUDA driver")
        set_environment(PHALANX_CUDA_DRIVER=simulator, PHALANX_NVRTC=simulator)
    phalanx.virtual_devices(1, face="cuda")
    stream_order.orders("cuda", CudaStreamOrder())
    dist.init_process_group("phalanx")
    return torch.device("cuda", 0)


def _future_for_native_code(work: Any) -> Any:
    """Ask as DDP's reducer does: the name of the method is not in the calling code."""
    return getattr(work, "".join(("get_", "future")))()


def _store() -> Any:
    return dist.group.WORLD.get_group_store()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ask", [_future_for_native_code, lambda work: work.get_future()], ids=["native", "python"])
def test_who_asks_gets_a_future_before_the_operation_is_over(gpu: torch.device, rank: int, ask: Any) -> None:
    value = torch.full((_LARGE,), rank + 1.0, device=gpu)
    if rank == 0:
        future = ask(dist.all_reduce(value, async_op=True))
        assert not future.done()
        _store().set("asked", "")
        assert future.wait()[0] is value
    else:
        _store().wait(["asked"])
        dist.all_reduce(value)
    assert value[-1] == 3.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_callbacks_of_such_a_future_get_the_result(gpu: torch.device, rank: int) -> None:
    value = torch.ones(_LARGE, device=gpu)
    if rank == 0:
        future = _future_for_native_code(dist.all_reduce(value, async_op=True))
        halved = future.then(lambda done: done.value()[0] / 2)
        _store().set("asked", "")
        assert halved.wait()[-1] == 1.0
    else:
        _store().wait(["asked"])
        dist.all_reduce(value)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_such_a_future_fails_with_the_operation(gpu: torch.device, rank: int) -> None:
    value = torch.ones(4 + rank, device=gpu)
    if rank == 0:
        future = _future_for_native_code(dist.all_reduce(value, async_op=True))
        _store().set("asked", "")
        with pytest.raises(RuntimeError, match="ranks disagree on shape"):
            future.wait()
    else:
        _store().wait(["asked"])
        with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
            dist.all_reduce(value)
    dist.destroy_process_group()  # the program has been told: nothing more to say


@pytest.mark.ranks(2)
def test_collectives_of_callbacks_come_before_those_called_after_them(gpu: torch.device, rank: int) -> None:
    """Whichever rank is late: the sizes tell that the order is the same on both."""

    def reduce_again(done: Any) -> torch.Tensor:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]  # type: ignore[no-any-return]

    for turn in range(20):
        first, second = torch.ones(1000 + turn, device=gpu), torch.ones(7, device=gpu)
        if turn % 2 == rank:
            _store().wait([f"begun {turn}"])
        future = dist.all_reduce(first, async_op=True).get_future().then(reduce_again)
        if turn % 2 != rank:
            _store().set(f"begun {turn}", "")
        work = dist.all_reduce(second, async_op=True)
        assert future.wait()[0] == 8.0
        work.wait()
        assert second[0] == 2.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_callbacks_of_several_futures_run_in_the_order_in_which_these_were_asked_for(
    gpu: torch.device, rank: int
) -> None:
    groups = [dist.new_group(), dist.new_group()]
    for turn in range(10):
        works = [dist.all_reduce(torch.ones(_LARGE, device=gpu), group=group, async_op=True) for group in groups]
        _store().set(f"begun {turn}", "") if turn % 2 != rank else _store().wait([f"begun {turn}"])
        seen: list[int] = []

        def reduce_again(_: Any, count: int, seen: list[int] = seen) -> None:
            dist.all_reduce(torch.ones(count, device=gpu))  # ranks would disagree about the size
            seen.append(count)

        futures = [
            work.get_future().then(functools.partial(reduce_again, count=100 * (at + 1)))
            for at, work in enumerate(works)
        ]
        for future in futures:
            future.wait()
        assert seen == [100, 200]
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_callback_may_wait_for_another_future(gpu: torch.device, rank: int) -> None:
    works = [dist.all_reduce(torch.full((_LARGE,), 1.0 + at, device=gpu), async_op=True) for at in range(2)]
    first, second = (work.get_future() for work in works)
    assert first.then(lambda _: second.wait()[0]).wait()[0] == 4.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_threads_do_not_wait_for_each_others_futures(gpu: torch.device, rank: int) -> None:
    """Each with a group of its own, on one rank in this order and on the other in that."""
    groups = [dist.new_group(), dist.new_group()]

    def reduce_often(group: Any) -> bool:
        for _ in range(20):
            value = torch.ones(_LARGE, device=gpu)
            assert dist.all_reduce(value, group=group, async_op=True).get_future().wait()[0][-1] == 2.0
        return True

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(reduce_often, groups if rank == 0 else groups[::-1], timeout=30)) == [True, True]
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_collectives_of_another_engine_come_after_callbacks_too(rank: int) -> None:
    """Both ranks start the callback's first: the sums tell."""
    phalanx.virtual_devices(1, face="cuda")
    stream_order.orders("cuda", CudaStreamOrder())
    dist.init_process_group("cpu:gloo,cuda:phalanx")
    for turn in range(10):
        first, second = torch.tensor([1.0]), torch.tensor([100.0])
        if turn % 2 == rank:
            _store().wait([f"begun {turn}"])
        work = dist.all_reduce(torch.ones(_LARGE, device="cuda:0"), async_op=True)
        future = work.get_future().then(lambda _, first=first: dist.all_reduce(first))
        if turn % 2 != rank:
            _store().set(f"begun {turn}", "")
        dist.all_reduce(second)
        future.wait()
        assert (float(first), float(second)) == (2.0, 200.0)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_collectives_do_not_wait_for_a_message_whose_future_somebody_has(gpu: torch.device, rank: int) -> None:
    value = torch.zeros(4, device=gpu)
    if rank == 0:
        with ThreadPoolExecutor(1) as threads:
            message = threads.submit(lambda: dist.irecv(value, 1).get_future().wait())
            dist.all_reduce(torch.ones(4, device=gpu))
            message.result(timeout=30)
        assert value[0] == 5.0
    else:
        dist.all_reduce(torch.ones(4, device=gpu))
        dist.send(torch.full((4,), 5.0, device=gpu), 0)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_synchronizing_waits_for_callbacks_too(gpu: torch.device, rank: int) -> None:
    for _ in range(10):
        output = torch.zeros(_LARGE, device=gpu)
        future = dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True).get_future()
        future.then(lambda done, output=output: output.copy_(done.value()[0]))
        torch.cuda.synchronize()
        assert output[-1] == 2.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_callbacks_record_gradients_if_their_caller_does(gpu: torch.device, rank: int, mode: Any) -> None:
    def tell(_: Any) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with mode():
        if rank == 1:
            _store().wait(["attached"])
        value = torch.ones(_LARGE, device=gpu)
        future = dist.all_reduce(value, async_op=True).get_future().then(tell)
        _store().set("attached", "")
        assert future.wait() == tell(None)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_group_ends_after_the_callbacks_of_its_futures(gpu: torch.device, rank: int) -> None:
    seen = []

    def reduce_again(done: Any) -> None:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        seen.append(float(tensor[0]))

    if rank == 1:
        _store().wait(["attached"])
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True).get_future().then(reduce_again)
    _store().set("attached", "")
    group.shutdown()
    assert seen == [4.0]


@pytest.mark.ranks(2)
def test_a_coalescing_block_begins_after_callbacks(gpu: torch.device, rank: int) -> None:
    """torch would take a callback's collective for a part of the block."""

    def reduce_again(done: Any) -> torch.Tensor:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return tensor  # type: ignore[no-any-return]

    for turn in range(10):
        if turn % 2 == rank:
            _store().wait([f"begun {turn}"])
        future = dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True).get_future().then(reduce_again)
        if turn % 2 != rank:
            _store().set(f"begun {turn}", "")
        values = [torch.ones(3, device=gpu) for _ in range(2)]
        with dist._coalescing_manager(async_ops=True) as coalesced:
            for value in values:
                dist.all_reduce(value)
        coalesced.wait()
        assert [float(value[0]) for value in values] == [2.0, 2.0]
        assert future.wait()[0] == 4.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_message_does_not_wait_for_callbacks(gpu: torch.device, rank: int) -> None:
    """The peer comes to the collective only after it."""
    value = torch.ones(_LARGE, device=gpu)
    if rank == 0:
        future = dist.all_reduce(value, async_op=True).get_future()
        dist.send(torch.ones(1), 1)
        assert future.wait()[0][-1] == 2.0
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(value)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_future_of_python_code_fails_with_the_operation(gpu: torch.device, rank: int) -> None:
    if rank == 0:
        future = dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True).get_future()
        _store().set("asked", "")
        with pytest.raises(RuntimeError, match="ranks disagree on shape"):
            future.wait()
    else:
        _store().wait(["asked"])
        with pytest.raises(phalanx.MismatchError):
            dist.all_reduce(torch.ones(3, device=gpu))
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_hook_of_ddp_may_start_a_collective_in_its_callback(gpu: torch.device, rank: int) -> None:
    """In many small buckets: the next one's collective comes after the callback's on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))).to(gpu)
    ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(model), device_ids=[0], bucket_cap_mb=0.0001)
    register_averaging_hook(ddp, 2)
    batches = [torch.randn(4, 8, generator=torch.Generator().manual_seed(other)).to(gpu) for other in range(2)]
    for _ in range(3):
        ddp.zero_grad()
        ddp(batches[rank]).square().mean().backward()
    model(torch.cat(batches)).square().mean().backward()
    for own, whole in zip(ddp.module.parameters(), model.parameters(), strict=True):
        assert own.grad is not None
        assert whole.grad is not None
        assert torch.allclose(own.grad, whole.grad, atol=1e-6)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_what_a_callback_raises_is_the_futures_error(gpu: torch.device, rank: int) -> None:
    def fail(_: Any) -> None:
        raise ValueError("not today")

    future = dist.all_reduce(torch.ones(2, device=gpu), async_op=True).get_future().then(fail)
    with pytest.raises(RuntimeError, match="not today"):
        future.wait()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize])
def test_synchronizing_waits_for_collectives(gpu: torch.device, rank: int, synchronize: Any) -> None:
    works = [dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True) for _ in range(3)]
    synchronize()
    assert all(work.is_completed() for work in works)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_synchronizing_tells_of_a_collective_that_failed(gpu: torch.device, rank: int) -> None:
    dist.all_reduce(torch.ones(4 + rank, device=gpu), async_op=True)
    with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
        torch.cuda.synchronize()
    dist.destroy_process_group()


@pytest.mark.ranks(2, gpus="virtual:1", kind="thread", backend="phalanx")
@pytest.mark.parametrize("is_behind_the_host", [False, True])
def test_synchronizing_leaves_the_collectives_of_other_threads_alone(
    process_group: Any, group: Any, rank: int, is_behind_the_host: bool
) -> None:
    if is_behind_the_host and rank == 0:
        stream_order.orders("cuda", CudaStreamOrder())
    group.barrier()
    value = torch.ones(_LARGE, device="cuda:0")
    work = dist.all_reduce(value, async_op=True) if rank == 1 else None
    group.barrier()
    if work is None:
        torch.cuda.synchronize()  # rank 1's collective waits for what comes next
        work = dist.all_reduce(value, async_op=True)
    torch.cuda.synchronize()
    assert work.is_completed()
    assert value[-1] == 2.0


@pytest.mark.ranks(2)
def test_a_collective_that_failed_unseen_is_told_of_at_the_end(gpu: torch.device, rank: int) -> None:
    dist.all_reduce(torch.ones(4 + rank, device=gpu), async_op=True)
    with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_tensors_are_let_go_of_when_it_is_over(gpu: torch.device, rank: int) -> None:
    before = torch.cuda.memory_allocated()
    works = [dist.all_reduce(torch.ones(_LARGE, device=gpu), async_op=True) for _ in range(4)]
    torch.cuda.synchronize()
    works.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_tensors_that_nobody_keeps_are_reduced_all_the_same(gpu: torch.device, rank: int) -> None:
    views = [torch.ones(_LARGE, device=gpu) for _ in range(4)]
    works = [dist.all_reduce(view[:-1], async_op=True) for view in views]
    for work in works:
        work.wait()
    assert [float(view[:-1].sum()) for view in views] == [2.0 * (_LARGE - 1)] * 4
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_cpu_and_gpu_tensors_take_turns(gpu: torch.device, rank: int) -> None:
    pending = []
    for step in range(6):
        value = torch.full((1000,), float(step), device="cpu" if step % 2 else gpu)
        pending.append((value, dist.all_reduce(value, async_op=True)))
    for step, (value, work) in enumerate(pending):
        work.wait()
        assert value[0] == 2.0 * step
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ranks(4)
def test_groups_of_a_world_that_is_bound_to_a_device_can_be_split(rank: int) -> None:
    phalanx.virtual_devices(1, face="cuda")
    stream_order.orders("cuda", CudaStreamOrder())
    set_environment(LOCAL_RANK="0")  # as for ranks that share a GPU: meshes make that device current
    device = torch.device("cuda", 0)
    dist.init_process_group("phalanx", device_id=device)
    assert dist.group.WORLD.bound_device_id == device
    half = dist.split_group(None, [[0, 1], [2, 3]])
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("rows", "columns"))
    other = dist.new_group([1, 2])
    for group, total in ((half, 2), (mesh["rows"].get_group(), 4), (other, 4)):
        value = torch.full((4,), 2.0 if group is not half else 1.0, device=device)
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            assert group.bound_device_id == device
            dist.all_reduce(value, group=group)
            assert value[-1] == total
    assert (dist.split_group(None, [[3]]) is None) == (rank != 3)
    dist.destroy_process_group()


@pytest.mark.ranks(1)
def test_a_group_whose_gpus_another_backend_serves_is_not_bound(rank: int) -> None:
    phalanx.virtual_devices(1, face="cuda")
    stream_order.orders("cuda", CudaStreamOrder())
    dist.init_process_group("cpu:phalanx,cuda:gloo", device_id=torch.device("cuda", 0))
    assert dist.group.WORLD.bound_device_id is None  # torch would split groups of the other backend
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_ddp_trains_as_one_process_does(gpu: torch.device, rank: int) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).to(gpu)

    alone, data = model(), torch.randn(8, 32, generator=torch.Generator().manual_seed(2)).to(gpu)
    together = torch.nn.parallel.DistributedDataParallel(model(), device_ids=[0], bucket_cap_mb=1)
    nets = [(alone, data), (together, data.chunk(2)[rank])]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net, _ in nets]
    for _ in range(3):
        for (net, batch), optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    for mine, reference in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, reference)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_join_keeps_the_work_that_it_hands_to_the_reducer(gpu: torch.device, rank: int) -> None:
    """Its result is asked for after other collectives have started."""
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).to(gpu), device_ids=[0], bucket_cap_mb=1e-6)
    with ddp.join(divide_by_initial_world_size=False):
        for _ in range(3 + 2 * rank):
            ddp(torch.ones(1, 2, device=gpu)).sum().backward()
            gc.collect()
            torch.cuda.synchronize()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_ranks_share_a_gpu_under_the_name_of_nccl(rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    phalanx.virtual_devices(1, face="cuda")
    stream_order.orders("cuda", CudaStreamOrder())
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(discovery, "DEVICE_FOLDER", tmp_path)
        stand_in = phalanx.stand_in_for("nccl")
    with stand_in:
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
        value = torch.ones(8, device="cuda")
        dist.all_reduce(value)
        assert value.tolist() == [2.0] * 8
        dist.barrier()
        assert phalanx.is_stand_in()
        dist.destroy_process_group()


@on_virtual_devices(1, face="cuda")
def test_virtual_gpus_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    serve_cuda()
    assert stream_order.is_virtual("cuda")


@on_virtual_devices(1, face="cuda")
def test_python_code_of_a_rank_that_is_a_thread_gets_a_completed_future(tmp_path: Path) -> None:
    """One rank must not wait for callbacks of another, who may be waiting for it."""
    stream_order.orders("cuda", CudaStreamOrder())

    def ask() -> bool:
        rank = phalanx.connect().rank
        dist.init_process_group("phalanx", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
        future = dist.all_reduce(torch.ones(_LARGE, device="cuda:0"), async_op=True).get_future()
        is_done: bool = future.done()
        dist.destroy_process_group()
        return is_done

    with thread_worlds():
        assert phalanx.spawn(ask, ranks=2, kind="thread", timeout_s=60) == [True, True]


@in_child
def test_a_torch_without_cuda_serves_none() -> None:
    serve_cuda()
    assert "cuda" not in stream_order.device_types()


@in_child
def test_a_torch_with_cuda_serves_gpus_and_leaves_nccl_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delitem(dist.Backend._plugins, "PHALANX")
    autoload.register()
    serve_cuda()
    assert dist.Backend.backend_capability["phalanx"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cuda"] == "nccl"
    assert not torch.cuda.is_initialized()
    dist.init_process_group("phalanx")
    assert {device.type for device in dist.group.WORLD._device_types} == {"cpu", "cuda"}
    told: list[Any] = [None]
    dist.all_gather_object(told, "word")  # goes by the CPU where there is a choice
    assert told == ["word"]
    dist.barrier()
    dist.destroy_process_group()

"""phalanx under its own name with tensors of virtual devices, of either face."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest
import torch

import phalanx
from phalanx.torch_backend.untyped import dist
from tests.virtual_gpus.in_child import on_virtual_devices

Face = Literal["virtual", "cuda"]


@pytest.fixture(params=["virtual", "cuda"])
def face(request: pytest.FixtureRequest, rank: int) -> Face:
    """Two devices of a face; the value is their type. What needs `rank` runs on the ranks alone."""
    chosen: Face = request.param
    phalanx.virtual_devices(2, face=chosen)
    return chosen


@pytest.mark.ranks(2)
def test_one_group_serves_the_cpu_and_the_devices(face: Face, rank: int) -> None:
    dist.init_process_group("phalanx")
    assert {device.type for device in dist.group.WORLD._device_types} == {"cpu", face}
    for place in ("cpu", f"{face}:{rank}", f"{face}:0"):  # its own rules: two ranks may share a device
        value = torch.ones(3, 2, device=place).t()
        dist.all_reduce(value)
        assert value.tolist() == [[2.0] * 3] * 2
        assert value.device == torch.device(place)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_every_call_takes_device_tensors(face: Face, rank: int) -> None:
    dist.init_process_group("phalanx")
    device = torch.device(face, rank)
    mine = torch.full((2,), float(rank), device=device)
    gathered = [torch.empty(2, device=device) for _ in range(2)]
    dist.all_gather(gathered, mine)
    assert [one.tolist() for one in gathered] == [[0.0, 0.0], [1.0, 1.0]]
    swapped = torch.empty(2, device=device)
    dist.all_to_all_single(swapped, torch.tensor([10.0 * rank, 10.0 * rank + 1], device=device))
    assert swapped.tolist() == [float(rank), 10.0 + rank]
    dist.broadcast(mine, 1)
    assert mine.tolist() == [1.0, 1.0]
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(swapped)
        assert swapped.tolist() == [1.0, 1.0]
    told: list[Any] = [None, None]
    dist.all_gather_object(told, rank)
    assert told == [0, 1]
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("face", ["cuda"], indirect=True)
def test_a_group_can_be_for_the_devices_alone(face: Face, rank: int) -> None:
    dist.init_process_group("cuda:phalanx")
    value = torch.ones(1, device=f"cuda:{rank}")
    dist.all_reduce(value)
    assert float(value) == 2.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("face", ["cuda"], indirect=True)
def test_devices_can_be_named_with_their_backend(face: Face, rank: int) -> None:
    dist.init_process_group("cpu:phalanx,cuda:phalanx")
    for place in ("cpu", f"cuda:{rank}"):
        value = torch.ones(1, device=place)
        dist.all_reduce(value)
        assert float(value) == 2.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("face", ["virtual"], indirect=True)
def test_no_backend_at_all_means_phalanx_for_its_own_devices(face: Face, rank: int) -> None:
    dist.init_process_group()
    value = torch.ones(1, device=f"virtual:{rank}")
    dist.all_reduce(value)
    assert float(value) == 2.0
    assert not phalanx.is_stand_in()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_sub_groups_serve_the_devices_too(face: Face, rank: int) -> None:
    dist.init_process_group("phalanx")
    value = torch.ones(1, device=f"{face}:{rank}")
    dist.all_reduce(value, group=dist.new_group([0, 1]))
    assert float(value) == 2.0
    half = dist.group.WORLD.split_group([rank])
    half.allreduce(value).wait()
    assert float(value) == 2.0
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_functional_collectives_take_device_tensors(face: Face, rank: int) -> None:
    import torch.distributed._functional_collectives as functional

    dist.init_process_group("phalanx")
    name, value = dist.group.WORLD.group_name, torch.ones(2, device=f"{face}:{rank}")
    assert functional.all_reduce(value, "sum", name).tolist() == [2.0, 2.0]
    output = torch.empty(4, device=value.device)
    operation = torch.ops._c10d_functional.all_gather_into_tensor_out
    torch.ops._c10d_functional.wait_tensor(operation(value, 2, name, out=output))
    assert output.tolist() == [1.0] * 4
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_dist2_makes_groups_for_the_devices(face: Face, rank: int) -> None:
    dist2 = pytest.importorskip("torch.distributed._dist2")
    from phalanx.torch_backend.autoload import register_for_dist2

    register_for_dist2()
    group = dist2.new_group("phalanx", timedelta(seconds=60), torch.device(face, rank))
    value = torch.ones(2, device=f"{face}:{rank}")
    group.allreduce(value).wait()
    assert value.tolist() == [2.0, 2.0]
    group.shutdown()


@pytest.mark.ranks(2)
def test_futures_of_device_tensors_are_ready(face: Face, rank: int) -> None:
    dist.init_process_group("phalanx")
    value = torch.ones(1 << 16, device=f"{face}:{rank}")
    assert dist.all_reduce(value, async_op=True).get_future().done()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_synchronizing_waits_for_what_is_pending(face: Face, rank: int) -> None:
    dist.init_process_group("phalanx")
    value = torch.ones(1 << 20, device=f"{face}:{rank}")
    work = dist.all_reduce(value, async_op=True)
    torch.accelerator.synchronize(rank)
    assert work.is_completed()
    dist.destroy_process_group()


@on_virtual_devices(1)
def test_a_device_of_another_kind_is_still_refused() -> None:
    dist.init_process_group("phalanx")
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1, device="meta"))
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_synchronizing_tells_of_a_collective_that_failed(rank: int) -> None:
    phalanx.virtual_devices(2)
    torch.accelerator.set_device_index(rank)
    dist.init_process_group("phalanx")
    dist.all_reduce(torch.ones(4 + rank, device="virtual"), async_op=True)
    with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
        torch.virtual.synchronize()  # type: ignore[attr-defined]
    dist.destroy_process_group()

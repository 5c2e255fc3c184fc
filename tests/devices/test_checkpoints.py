from __future__ import annotations

import io

import pytest
import torch

from phalanx import UsageError
from phalanx.devices.checkpoints import remap_devices
from tests.virtual_gpus.both_faces import on_both_faces


def _saved(device_type: str) -> bytes:
    stream = io.BytesIO()
    tensors = [torch.full((3,), index, device=f"{device_type}:{index}", dtype=torch.int32) for index in (0, 1)]
    torch.save([*tensors, torch.ones(2, dtype=torch.float64)], stream)
    return stream.getvalue()


def _places(saved: bytes, **options: object) -> list[str]:
    loaded = torch.load(io.BytesIO(saved), **options)  # type: ignore[arg-type]
    assert [tensor.tolist() for tensor in loaded] == [[0, 0, 0], [1, 1, 1], [1, 1]]
    assert [tensor.dtype for tensor in loaded] == [torch.int32, torch.int32, torch.float64]
    return [str(tensor.device) for tensor in loaded]


@on_both_faces
def test_torch_load_takes_every_kind_of_map_location(device_type: str) -> None:
    saved = _saved(device_type)
    zero, one, three = (f"{device_type}:{index}" for index in (0, 1, 3))
    assert _places(saved) == [zero, one, "cpu"]
    assert _places(saved, map_location={one: zero}) == [zero, zero, "cpu"]
    assert _places(saved, map_location=lambda storage, where: storage.to(device=three) if where == one else None) == [
        zero,
        three,
        "cpu",
    ]
    assert _places(saved, map_location=three) == [three] * 3
    assert _places(saved, map_location="cpu") == ["cpu"] * 3
    assert _places(saved, map_location=torch.device(device_type, 1)) == [one] * 3


@on_both_faces
def test_devices_that_are_not_here_are_refused_or_remapped(device_type: str) -> None:
    nine = _saved(device_type).replace(f"{device_type}:1".encode(), f"{device_type}:9".encode())
    with pytest.raises(RuntimeError, match=f"Attempting to deserialize object on {device_type.upper()} device 9"):
        _places(nine)
    zero, one, two = (f"{device_type}:{index}" for index in (0, 1, 2))
    with pytest.raises(UsageError, match=rf"tensors of {device_type}:9, and this process has {zero} to .*:3\n  do "):
        _places(nine, map_location=remap_devices())
    assert _places(nine, map_location=remap_devices({f"{device_type}:9": two})) == [zero, two, "cpu"]
    assert _places(nine, map_location=remap_devices(missing="wrap")) == [zero, one, "cpu"]
    assert _places(nine, map_location=remap_devices(missing="cpu")) == [zero, "cpu", "cpu"]
    assert _places(_saved(device_type), map_location=remap_devices()) == [zero, one, "cpu"]


@on_both_faces
def test_tensors_of_another_device_type_find_a_place(device_type: str) -> None:
    for location, place in (("xpu:6", f"{device_type}:2"), ("xpu", f"{device_type}:0"), ("cpu", "cpu")):
        storage = remap_devices(missing="wrap")(torch.ones(2).untyped_storage(), location)
        assert str(storage.device) == place
    with pytest.raises(UsageError, match="the checkpoint has tensors of xpu:6"):
        remap_devices()(torch.ones(2).untyped_storage(), "xpu:6")


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="missing='maybe' is unknown"):
        remap_devices(missing="maybe")  # type: ignore[arg-type]


def test_without_devices_the_error_says_so() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    storage = torch.ones(1).untyped_storage()
    with pytest.raises(UsageError, match=r"tensors of cuda:3, and this process has the CPU only"):
        remap_devices(missing="wrap")(storage, "cuda:3")
    assert remap_devices(missing="cpu")(storage, "cuda:3").device.type == "cpu"

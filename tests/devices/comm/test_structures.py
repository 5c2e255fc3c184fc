from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch

from phalanx.devices.comm import gather_structures, scatter_arguments, scatter_structure
from tests.virtual_gpus.both_faces import assert_equal, devices, on_both_faces

Pair = namedtuple("Pair", ("first", "second"))  # the other flavour is what the test is about


class Typed(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@on_both_faces
def test_namedtuples_keep_their_type_and_fields(device_type: str) -> None:
    first, second = torch.randn(4, 2), torch.randn(4)
    for kind in (Pair, Typed):
        for place in ("cpu", f"{device_type}:1"):
            scattered = scatter_structure(kind(first.to(place), second.to(place)), [0, 1])
            assert isinstance(scattered, list)
            for index, piece in enumerate(scattered):
                assert isinstance(piece, kind)
                assert piece._fields == ("first", "second")
                assert piece.first.device.index == piece.second.device.index == index
            for destination in (0, "cpu"):
                whole = gather_structures(scattered, destination)
                assert isinstance(whole, kind)
                assert_equal(whole.first, first)
                assert_equal(whole.second, second)
                assert whole.first.device.type == ("cpu" if destination == "cpu" else device_type)


@on_both_faces
def test_containers_are_scattered_inside_out(device_type: str) -> None:
    tensor, other = torch.arange(4.0), object()
    bare = scatter_structure(tensor, devices(device_type, 0, 1))
    assert isinstance(bare, tuple)
    assert [piece.tolist() for piece in bare] == [[0, 1], [2, 3]]
    scattered = scatter_structure({"a": (tensor, [tensor, other]), "b": None}, [0, 1])
    assert [piece["a"][0].tolist() for piece in scattered] == [[0, 1], [2, 3]]
    assert [piece["a"][1][0].device.index for piece in scattered] == [0, 1]
    assert all(piece["a"][1][1] is other and piece["b"] is None for piece in scattered)
    assert isinstance(scatter_structure(OrderedDict(a=tensor), [0])[0], OrderedDict)
    assert scatter_structure((), [0, 1]) == [(), ()]
    assert scatter_structure({}, [0, 1]) == [{}, {}]
    assert scatter_structure("word", [0, 1]) == ["word", "word"]
    assert len(scatter_structure((tensor[:1], tensor), [0, 1])) == 1


@on_both_faces
def test_arguments_of_a_call_are_scattered_together(device_type: str) -> None:
    calls = scatter_arguments((torch.arange(4.0),), {"scale": 3}, [0, 1])
    assert [(args[0].tolist(), kwargs) for args, kwargs in calls] == [([0, 1], {"scale": 3}), ([2, 3], {"scale": 3})]
    assert scatter_arguments((), {"scale": 3}, [0, 1]) == [((), {"scale": 3})] * 2
    assert scatter_arguments((), {}, [0, 1]) == []
    uneven = scatter_arguments((torch.arange(1.0),), {"scale": 3}, [0, 1])
    assert [len(args) for args, _ in uneven] == [1, 0]


@on_both_faces
def test_gather_rebuilds_containers_and_refuses_unlike_ones(device_type: str) -> None:
    outputs = [{"a": [torch.ones(2, device=device) * 2, None]} for device in devices(device_type, 0, 1)]
    together = gather_structures(outputs, 1)
    assert together["a"][0].tolist() == [2, 2, 2, 2]
    assert together["a"][1] is None
    with pytest.raises(ValueError, match="All dicts must have the same number of keys"):
        gather_structures([{"a": None}, {}], 0)
    scalars = [torch.tensor(float(index), device=f"{device_type}:{index}", requires_grad=True) for index in (0, 1)]
    with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze and return a vector"):
        vector = gather_structures(scalars, 0)
    assert vector.tolist() == [0, 1]
    (vector * vector.new_tensor([3, 5])).sum().backward()
    assert [scalar.grad.item() for scalar in scalars if scalar.grad is not None] == [3, 5]

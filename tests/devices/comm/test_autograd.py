"""Gradients through the device services are those of the same program on the CPU."""

from __future__ import annotations

import torch

from phalanx.devices.comm import (
    broadcast,
    broadcast_with_gradients,
    gather,
    reduce_add,
    scatter,
    sums_with_gradients,
)
from tests.virtual_gpus.both_faces import assert_equal, devices, on_both_faces


def _leaf(values: torch.Tensor, device: str) -> torch.Tensor:
    return values.to(device).detach().requires_grad_()


@on_both_faces
def test_gradients_of_scatter_and_gather(device_type: str) -> None:
    values = torch.randn(6, 3)
    for place in ("cpu", f"{device_type}:1"):
        for dim, sizes in ((0, [1, 2, 3]), (1, None)):
            leaf, reference = _leaf(values, place), _leaf(values, "cpu")
            pieces = scatter(leaf, [0, 1, 2], sizes, dim)
            joined = gather([piece.sin() * (index + 1) for index, piece in enumerate(pieces)], dim, 2)
            (joined**2).sum().backward()
            parts = reference.chunk(3, dim) if sizes is None else reference.split(sizes, dim)
            (torch.cat([part.sin() * (index + 1) for index, part in enumerate(parts)], dim) ** 2).sum().backward()
            assert leaf.grad is not None
            assert reference.grad is not None
            assert_equal(leaf.grad, reference.grad)


@on_both_faces
def test_gradients_of_gradients_flow_too(device_type: str) -> None:
    leaf = torch.randn(4, dtype=torch.float64, device=device_type, requires_grad=True)

    def there_and_back(tensor: torch.Tensor) -> torch.Tensor:
        return gather([piece**3 for piece in scatter(tensor, [0, 1])], 0, 0)

    def summed(tensor: torch.Tensor) -> torch.Tensor:
        copies = broadcast_with_gradients([tensor, tensor * 2], devices(device_type, 0, 1))
        products = [[first * second, second**2] for first, second in copies]
        return torch.stack(sums_with_gradients(products, torch.device(device_type, 0)))

    for function in (there_and_back, summed):
        assert torch.autograd.gradcheck(function, (leaf,))
        assert torch.autograd.gradgradcheck(function, (leaf,))


@on_both_faces
def test_gradients_of_broadcast_and_reduce_add(device_type: str) -> None:
    values = torch.arange(5.0)  # whole numbers, so that the order of a sum does not matter
    for spread in (
        lambda leaf: broadcast(leaf, [0, 1, 2]),
        lambda leaf: [group[0] for group in broadcast_with_gradients([leaf], devices(device_type, 0, 1, 2))],
    ):
        leaf, reference = _leaf(values, f"{device_type}:0"), _leaf(values, "cpu")
        terms = [copy * (index + 1) for index, copy in enumerate(spread(leaf))]
        reduce_add(terms, 1).pow(2).sum().backward()
        (reference * 2 + reference * 1 + reference * 3).pow(2).sum().backward()
        assert leaf.grad is not None
        assert reference.grad is not None
        assert_equal(leaf.grad, reference.grad)


@on_both_faces
def test_coalesced_gradients_leave_out_what_has_none(device_type: str) -> None:
    weight = torch.ones(3, device=device_type, requires_grad=True)
    unused = torch.ones(2, device=device_type, requires_grad=True)
    counter = torch.arange(3, device=device_type)
    copies = broadcast_with_gradients([weight, counter, unused], devices(device_type, 0, 1))
    assert [tensor.requires_grad for tensor in copies[1]] == [True, False, True]
    sums = sums_with_gradients([[group[0] * group[1]] for group in copies], torch.device(device_type, 1))
    sums[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 2, 4]
    assert unused.grad is not None
    assert unused.grad.tolist() == [0, 0]

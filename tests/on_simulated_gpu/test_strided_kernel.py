from __future__ import annotations

import ctypes

import pytest
import torch

from tests.on_simulated_gpu.launches import SimulatedGpu, StridedArguments
from tests.reference import values

ITEMS = (torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128)


@pytest.fixture(scope="module")
def module(simulated_gpu: SimulatedGpu) -> ctypes.c_void_p:
    return simulated_gpu.module("PHX_STRIDED")


def strided_views(gpu: SimulatedGpu, dtype: torch.dtype) -> list[torch.Tensor]:
    whole = gpu.tensor(values(dtype, 2 * 3 * 5 * 7 * 4).view(2, 3, 5, 7, 4))
    return [
        whole,
        whole.permute(4, 2, 0, 3, 1),
        whole[:, 1:, ::2, 3, :],
        whole[1, 2, :, 6].t(),
        whole.view(-1)[5::9],
        whole[0, 0, 0, 0, 0],
        whole[:1, 0, 0, 0, 0].expand(6),
    ]


def arguments_for(view: torch.Tensor, flat: torch.Tensor, *, is_pack: bool) -> StridedArguments:
    arguments = StridedArguments(
        view.numel(), view.dim(), view.element_size(), is_pack, flat.data_ptr(), view.data_ptr()
    )
    arguments.sizes[: view.dim()] = view.shape
    arguments.strides[: view.dim()] = view.stride()
    return arguments


@pytest.mark.parametrize("dtype", ITEMS, ids=str)
def test_pack_gathers_the_items_of_a_view(gpu: SimulatedGpu, module: ctypes.c_void_p, dtype: torch.dtype) -> None:
    for view in strided_views(gpu, dtype):
        flat = gpu.tensor(torch.zeros(view.numel(), dtype=dtype), 8)
        gpu.launch(module, "strided", arguments_for(view, flat, is_pack=True))
        assert torch.equal(flat, view.reshape(-1))
        assert gpu.guards_are_whole(flat, 8)


@pytest.mark.parametrize("dtype", ITEMS, ids=str)
def test_unpack_fills_the_items_of_a_view(gpu: SimulatedGpu, module: ctypes.c_void_p, dtype: torch.dtype) -> None:
    for view in strided_views(gpu, dtype)[:-1]:
        flat = gpu.tensor(values(dtype, view.numel(), 1))
        gpu.launch(module, "strided", arguments_for(view, flat, is_pack=False))
        assert torch.equal(view.reshape(-1), flat)

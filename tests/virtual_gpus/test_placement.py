"""Tensors in the wrong place are refused as a GPU refuses them, in torch's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices

_TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
_INDICES = "indices should be either on cpu or on the same device as the indexed tensor"


def _add_to_a_number_of_the_cpu() -> None:
    total = torch.tensor(0.0)
    total += torch.tensor(1.0, device="cuda")


def _set_by_index(target: str, values: str) -> Callable[[], None]:
    def set_some() -> None:
        torch.zeros(5, device=target)[torch.tensor([1, 2])] = torch.ones(2, device=values)

    return set_some


_MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "add": (lambda: torch.ones(2, device="cuda") + torch.ones(2), _TWO_DEVICES),
    "add to a number of the CPU": (_add_to_a_number_of_the_cpu, _TWO_DEVICES),
    "out= on the CPU": (lambda: torch.sum(torch.ones(3, device="cuda"), 0, out=torch.tensor(0.0)), _TWO_DEVICES),
    "stack": (lambda: torch.stack([torch.tensor(1.0, device="cuda"), torch.tensor(1.0)]), _TWO_DEVICES),
    "a CPU's tensor by a device's index": (lambda: torch.arange(5)[torch.tensor([1], device="cuda")], _INDICES),
    "a device's values into the CPU": (_set_by_index("cpu", "cuda"), _INDICES),
    "the CPU's values into a device": (_set_by_index("cuda", "cpu"), _TWO_DEVICES),
    "a device's generator on the CPU": (
        lambda: torch.rand(3, generator=torch.Generator("cuda")),
        "Expected a 'cpu' device type for generator but found 'cuda'",
    ),
    "the CPU's generator on a device": (
        lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        "Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "another device's storage": (
        lambda: torch.empty(0, device="cuda:1").set_(torch.ones(3, device="cuda:0").untyped_storage()),
        "Attempted to set the storage of a tensor on device",
    ),
    "a pinned tensor of a device": (
        lambda: torch.empty(3, device="cuda", pin_memory=True),
        "Only dense CPU tensors can be pinned",
    ),
    "a stream that is not there": (
        lambda: torch.Stream(stream_id=10**8, device_index=0, device_type=1).synchronize(),
        "there is no stream 100000000 of virtual device 0",
    ),
}


@on_virtual_devices(2, face="cuda")
def test_tensors_of_two_places_do_not_meet() -> None:
    for mistake, (call, told) in _MISTAKES.items():
        try:
            call()
        except RuntimeError as error:
            assert told in str(error), mistake  # noqa: PT017
        else:
            pytest.fail(f"{mistake}: nothing was raised")


@on_virtual_devices(2, face="cuda")
def test_what_a_gpu_allows_is_allowed() -> None:
    here = torch.arange(5.0, device="cuda")
    assert (here + torch.tensor(1.0)).device == here.device  # a number of the CPU
    assert here[torch.tensor([1, 2])].tolist() == [1, 2]  # indices of the CPU
    here[torch.tensor([0])] = torch.tensor(7.0)
    assert here[0].item() == 7
    there = [torch.empty(2), torch.empty(2, device="cuda:1")]
    torch._foreach_copy_(there, [here[:2], here[1:3]])  # between any devices
    assert [tensor.tolist() for tensor in there] == [[7, 1], [1, 2]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@on_virtual_devices(2, face="cuda")
def test_kinds_of_tensors_that_are_not_there_are_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match="virtual devices have no quantized tensors"):
        torch.quantize_per_tensor(torch.ones(3, device="cuda"), 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=r"nested ones of strided layout.*torch\.jagged"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("cuda")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@on_virtual_devices(1, face="cuda")
def test_a_transformer_with_a_padding_mask_infers() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    words, mask = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        expected = encoder(words, src_key_padding_mask=mask)
        result = encoder.cuda()(words.cuda(), src_key_padding_mask=mask.cuda()).cpu()
    torch.testing.assert_close(result[~mask], expected[~mask])

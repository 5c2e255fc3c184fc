from __future__ import annotations

import pytest
import torch

from phalanx.devices.comm import broadcast, broadcast_coalesced
from tests.virtual_gpus.both_faces import assert_equal, devices, on_both_faces


@on_both_faces
def test_broadcast_copies_to_every_device_and_keeps_the_source(device_type: str) -> None:
    on_device = torch.randn(5, 5, device=f"{device_type}:1")
    for source in (on_device, torch.randn(5, 5), on_device.to_sparse(), torch.randn(2, 3, dtype=torch.complex64)):
        for names in ([1, 0, 3], devices(device_type, 1, 0, 3), [f"{device_type}:{index}" for index in (1, 0, 3)]):
            copies = broadcast(source, names)
            assert isinstance(copies, tuple)
            assert [copy.device.index for copy in copies] == [1, 0, 3]
            for copy in copies:
                assert_equal(copy, source)
        if source.device.type != "cpu":
            assert copies[0] is source


@on_both_faces
def test_broadcast_fills_the_tensors_of_out(device_type: str) -> None:
    source = torch.randn(4, device=f"{device_type}:0")
    out = [torch.zeros(4, device=device) for device in devices(device_type, 0, 1, 2)]
    filled = broadcast(source, out=out)
    assert all(one is other for one, other in zip(filled, out, strict=True))
    for copy in out:
        assert_equal(copy, source)
    filled_from_cpu = broadcast(source.cpu() + 1, out=out)
    assert_equal(filled_from_cpu[2], source + 1)


@on_both_faces
def test_broadcast_refuses_in_torchs_words(device_type: str) -> None:
    source = torch.ones(3, device=f"{device_type}:0")
    on_one = torch.ones(3, device=f"{device_type}:1")
    for devices_given, out in (([0, 1], [on_one]), (None, None)):
        with pytest.raises(RuntimeError, match=r"Exactly one of 'devices' and 'out'"):
            broadcast(source, devices_given, out=out)
    kind = "CUDA" if device_type == "cuda" else device_type
    with pytest.raises(RuntimeError, match=f"output tensors to be {kind} tensors, but output tensor at index 1 has"):
        broadcast(source, out=[on_one, torch.ones(3)])
    with pytest.raises(RuntimeError, match=r"to have same shape as the source .+ at index 1 has shape \[2\]"):
        broadcast(source, out=[on_one, on_one[:2]])
    with pytest.raises(RuntimeError, match="Expected non-negative device index, but got -1"):
        broadcast(source, [0, -1])
    with pytest.raises(ValueError, match="Expected a non cpu device, but got: cpu"):
        broadcast(source, ["cpu"])


def _mixed(device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    dense = torch.randn(6, 7, generator=generator)
    return [
        tensor.to(device)
        for tensor in (
            dense,
            torch.arange(40),
            dense.to_sparse(),
            torch.empty(0),
            torch.arange(12, dtype=torch.int32).view(3, 4),
            torch.randn(30, generator=generator, dtype=torch.float64),
            torch.eye(4, dtype=torch.int64).to_sparse(),
            dense.t(),
            torch.empty(0, 5, dtype=torch.int64),
            (dense > 0).float().to_sparse(),
        )
    ]


@on_both_faces
def test_coalesced_broadcast_equals_one_by_one_whatever_the_buffer(device_type: str) -> None:
    tensors = _mixed(torch.device(device_type, 1))
    for buffer_bytes in (1, 100, 256, 10 * 1024 * 1024):
        per_device = broadcast_coalesced(tensors, [1, 0, 2], buffer_bytes)
        assert all(one is other for one, other in zip(per_device[0], tensors, strict=True))
        for index, copies in zip((0, 2), per_device[1:], strict=True):
            for copy, tensor in zip(copies, tensors, strict=True):
                assert copy.device.index == index
                assert_equal(copy, broadcast(tensor, [index])[0])


@on_both_faces
def test_coalesced_copies_have_version_counters_of_their_own(device_type: str) -> None:
    tensors = [torch.ones(3, device=device_type, requires_grad=True), torch.ones(2, 2, device=device_type)]
    tensors += [torch.ones(2, device=device_type).to_sparse()]
    [_, copies] = broadcast_coalesced(tensors, [0, 1])
    assert [copy.requires_grad for copy in copies] == [False] * 3
    before = [copy._version for copy in copies]
    copies[1].zero_()
    assert [copy._version - old for copy, old in zip(copies, before, strict=True)] == [0, 1, 0]
    assert copies[0].tolist() == [1, 1, 1]
    copies[2].zero_()
    assert [copy._version - old for copy, old in zip(copies, before, strict=True)] == [0, 1, 1]
    [_, again, once_more] = broadcast_coalesced(tensors, [0, 0, 0])
    again[0].zero_()
    assert once_more[0].tolist() == tensors[0].tolist() == [1, 1, 1]


@on_both_faces
def test_coalesced_broadcast_wants_all_tensors_on_the_first_device(device_type: str) -> None:
    for elsewhere in (torch.ones(1), torch.ones(1, device=f"{device_type}:1")):
        with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 0"):
            broadcast_coalesced([torch.ones(1, device=f"{device_type}:0"), elsewhere], devices(device_type, 0, 1))
    assert broadcast_coalesced([], [0, 1]) == ([], [])

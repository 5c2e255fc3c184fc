from __future__ import annotations

import pytest
import torch

from phalanx.devices.comm import reduce_add, reduce_add_coalesced
from tests.virtual_gpus.both_faces import assert_equal, on_both_faces


@on_both_faces
def test_reduce_add_sums_on_the_destination(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    terms = [torch.randn(3, 4) for _ in range(3)]
    inputs = [term.to(f"{device_type}:{index}") for index, term in enumerate(terms)]
    # The term of the destination comes first: the order of the sum decides the last bit.
    assert_equal(reduce_add(inputs, 1), terms[1] + terms[0] + terms[2])
    for destination in (2, f"{device_type}:2", torch.device(device_type, 2)):
        assert reduce_add(inputs, destination).device.index == 2
    with module.device(1):
        assert reduce_add(inputs).device.index == 1
    assert_equal(inputs[1], terms[1])
    assert reduce_add(inputs[:1], 0) is inputs[0]
    sparse = reduce_add([tensor.relu().to_sparse() for tensor in inputs], 0)
    assert_equal(sparse.to_dense(), terms[0].relu() + terms[1].relu() + terms[2].relu())
    assert sparse.is_sparse


@on_both_faces
def test_reduce_add_refuses_in_torchs_words(device_type: str) -> None:
    on_zero, on_one = (torch.ones(2, 3, device=f"{device_type}:{index}") for index in (0, 1))
    with pytest.raises(AssertionError, match="reduce_add expects all inputs to be on GPUs, but input 1 is on CPU"):
        reduce_add([on_zero, on_one.cpu()], 0)
    with pytest.raises(ValueError, match="input 1 has invalid size: got 3x2, but expected 2x3"):
        reduce_add([on_zero, on_one.t()], 0)
    with pytest.raises(RuntimeError, match="expects destination to be on the same GPU with one of the tensors"):
        reduce_add([on_zero, on_one], 2)


def _mixed(device: torch.device, scale: int) -> list[torch.Tensor]:
    dense = torch.arange(12.0).view(3, 4) * scale
    # The second device has other sparse entries than the first, and one dense tensor where the first has a sparse one.
    sparse = (dense * (dense > 4 * scale)).to_sparse() if scale == 1 else dense.to_sparse()
    tensors = [dense, dense.long(), sparse, dense.to_sparse() if scale == 1 else dense, dense.double(), torch.empty(0)]
    return [tensor.to(device) for tensor in tensors]


@on_both_faces
def test_coalesced_sums_keep_order_type_and_layout(device_type: str) -> None:
    inputs = [_mixed(torch.device(device_type, index), index + 1) for index in (0, 1)]
    for buffer_bytes in (1, 100, 256, 10 * 1024 * 1024):
        sums = reduce_add_coalesced(inputs, 1, buffer_bytes)
        assert isinstance(sums, tuple)
        assert [total.is_sparse for total in sums] == [False, False, True, False, False, False]
        for total, first, second in zip(sums, *inputs, strict=True):
            assert total.device.index == 1
            assert total.dtype == first.dtype
            assert_equal(total.to_dense(), first.cpu().to_dense() + second.cpu().to_dense())


@on_both_faces
def test_coalesced_sums_are_new_with_version_counters_of_their_own(device_type: str) -> None:
    inputs = [[torch.ones(2, device=f"{device_type}:{index}", requires_grad=True) for _ in "ab"] for index in (0, 1)]
    for given in (inputs, inputs[:1]):
        first, second = reduce_add_coalesced(given, 0)
        assert not first.requires_grad
        version = second._version
        first.zero_()
        assert second._version == version
        assert second.tolist() == [len(given)] * 2
        assert inputs[0][0].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        reduce_add_coalesced([inputs[0], inputs[1][:1]], 0)
    with pytest.raises(ValueError, match="input 1 has invalid size: got 3, but expected 2"):
        reduce_add_coalesced([inputs[0][:1], [torch.ones(3, device=f"{device_type}:1")]], 0)

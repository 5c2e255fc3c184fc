from __future__ import annotations

import pytest
import torch

from phalanx.devices.comm import gather, scatter
from tests.virtual_gpus.both_faces import assert_equal, devices, on_both_faces


@on_both_faces
def test_scatter_cuts_along_any_dimension(device_type: str) -> None:
    for source in (torch.randn(6, 6, 6), torch.randn(6, 6, 6, device=f"{device_type}:0")):
        for dim in (0, 2, -1, -3):
            for sizes in (None, (2, 4), [5, 1]):
                pieces = scatter(source, (0, 1), sizes, dim)
                expected = source.chunk(2, dim) if sizes is None else source.split(list(sizes), dim)
                assert isinstance(pieces, tuple)
                assert [piece.device for piece in pieces] == devices(device_type, 0, 1)
                for piece, part in zip(pieces, expected, strict=True):
                    assert_equal(piece, part)


@on_both_faces
def test_what_stays_on_its_device_is_a_view(device_type: str) -> None:
    source = torch.randn(6, 2, device=f"{device_type}:0")
    pieces = scatter(source, [0, 1, 0])
    assert pieces[0].data_ptr() == source.data_ptr()
    assert pieces[2].data_ptr() == source[4:].data_ptr()
    pieces[2].zero_()
    assert source[4:].abs().sum() == 0
    assert len(scatter(source[:2], [0, 1, 2])) == 2  # fewer rows than devices


@on_both_faces
def test_scatter_fills_the_tensors_of_out(device_type: str) -> None:
    source = torch.randn(3, 6)
    for dim in (1, -1):
        out = [torch.empty(3, size, device=f"{device_type}:{index}") for index, size in enumerate((2, 3, 1))]
        filled = scatter(source, dim=dim, out=out)
        assert all(one is other for one, other in zip(filled, out, strict=True))
        for piece, part in zip(out, source.split([2, 3, 1], 1), strict=True):
            assert_equal(piece, part)


@on_both_faces
def test_scatter_refuses_in_torchs_words(device_type: str) -> None:
    source, on_zero = torch.ones(4, 3), torch.ones(4, 3, device=f"{device_type}:0")
    kind = "CUDA" if device_type == "cuda" else device_type
    for options, words in (
        (
            {"devices": [0, 1], "chunk_sizes": (4,)},
            "Expected devices and chunk_sizes to be of same length, but got len",
        ),
        ({"devices": [0], "out": [on_zero]}, "'devices' must not be specified when 'out' is specified"),
        ({"chunk_sizes": [4], "out": [on_zero]}, "'chunk_sizes' must not be specified when 'out' is specified"),
        ({"devices": []}, "Expected at least one device to scatter to"),
        ({"out": []}, "Expected at least one output tensor to scatter to"),
        ({"out": [source, on_zero]}, f"tensors to be {kind} tensors, but output tensor at index 0 has device 'cpu'"),
        ({"out": [on_zero[:, :2]]}, r"Output tensor at index 0 has incorrect shape: \[4, 2\]"),
        ({"out": [on_zero[0]]}, r"Output tensor at index 0 has incorrect shape: \[3\]"),
        ({"out": [on_zero[:2]]}, r"Total size for output tensors along scatter dim \d+ does not match"),
    ):
        with pytest.raises(RuntimeError, match=words):
            scatter(source, **options)
    with pytest.raises(RuntimeError, match="split_with_sizes expects split_sizes to sum exactly to 4"):
        scatter(source, [0, 1], [1, 2])
    with pytest.raises(IndexError, match="Dimension out of range"):
        scatter(source, dim=5, out=[on_zero])


@on_both_faces
def test_scatter_runs_on_the_streams_given(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    busy, other = module.Stream(device=1), module.Stream(device=2)
    source = torch.arange(6.0, device=f"{device_type}:0")
    scatter(source, [0, 1, 2], streams=[None, busy])
    assert module.current_device() == 0
    assert all(module.current_stream(index) == module.default_stream(index) for index in range(3))
    with module.device(0):
        module._sleep(100_000_000)
    # A copy joins the streams of both ends: now the stream it ran on has to wait, and no other of its device.
    pieces = scatter(source, [0, 1, 2], streams=[None, busy, None])
    assert not busy.query()
    assert module.default_stream(1).query()
    assert not module.default_stream(2).query()
    assert [piece.tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match=r"stream at index 1 \(was 2\) to match the device .* \(expected 1\)"):
        scatter(torch.arange(6.0), [0, 1], streams=[None, other])
    with pytest.raises(RuntimeError, match=r"stream at index 0 \(was 1\) to match the device .* \(expected 0\)"):
        scatter(torch.arange(2.0), out=[torch.ones(2, device=f"{device_type}:0")], streams=[busy])


@on_both_faces
def test_channels_last_pieces_stay_channels_last(device_type: str) -> None:
    image = torch.randn(4, 3, 6, 6, device=f"{device_type}:0").to(memory_format=torch.channels_last)
    for dim in (0, 2, -1):
        pieces = scatter(image, (0, 1), dim=dim)
        assert not any(piece.is_contiguous() for piece in pieces)
        assert pieces[1].is_contiguous(memory_format=torch.channels_last)
        for destination in (None, 1, "cpu"):
            together = gather(pieces, dim, destination)
            assert together.is_contiguous(memory_format=torch.channels_last)
            assert_equal(together, image)
    mixed = gather([image, image.contiguous()], 0)
    assert mixed.is_contiguous()

"""Sums of tensors that lie on several devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from phalanx.devices.comm.broadcasting import BUFFER_BYTES
from phalanx.devices.comm.coalescing import buffers, flatten, unflatten
from phalanx.devices.comm.placement import AnyDevice, current_device, device_type_of, devices_named


def reduce_add(inputs: Sequence[torch.Tensor], destination: AnyDevice | None = None) -> torch.Tensor:
    """Return the sum of tensors of several devices; a single one is returned as it is. Gradients flow back.

    Args:
        inputs: Tensors of one shape, dense or sparse.
        destination: The device of the sum, or its number; one of the inputs has to lie there. By default the current.

    Raises:
        AssertionError: An input is on the CPU (torch's message).
        ValueError: The inputs have different sizes (torch's message).
        RuntimeError: No input lies on the destination (torch's message).
    """
    target = _destination(destination, inputs)
    _require_summable(inputs)
    root = max((index for index, tensor in enumerate(inputs) if tensor.device == target), default=None)
    if root is None:
        raise RuntimeError("reduce_add expects destination to be on the same GPU with one of the tensors")
    result = inputs[root]
    others = [tensor.to(target, non_blocking=True) for index, tensor in enumerate(inputs) if index != root]
    for position, other in enumerate(others):
        # The first sum makes a new tensor, which the others may be added to in place.
        result = result + other if position == 0 else result.add_(other)
    return result


def _require_summable(inputs: Sequence[torch.Tensor]) -> None:
    for index, tensor in enumerate(inputs):
        if tensor.device.type == "cpu":
            raise AssertionError(f"reduce_add expects all inputs to be on GPUs, but input {index} is on CPU")
        if tensor.shape != inputs[0].shape:
            got, expected = ("x".join(map(str, shape)) for shape in (tensor.shape, inputs[0].shape))
            raise ValueError(f"input {index} has invalid size: got {got}, but expected {expected}")


def _destination(destination: AnyDevice | None, tensors: Sequence[torch.Tensor]) -> torch.device:
    if destination is None:
        return current_device(device_type_of(tensors))
    return devices_named([destination], tensors)[0]


def reduce_add_coalesced(
    inputs: Iterable[Sequence[torch.Tensor]], destination: AnyDevice | None = None, buffer_size: int = BUFFER_BYTES
) -> tuple[torch.Tensor, ...]:
    """Return the sums of the first tensors, of the second ones, and so on, with one transfer per buffer.

    The sums are new, without history and with version counters of their own. A position that is sparse on every
    device stays sparse; one that is sparse on some becomes dense.

    Args:
        inputs: For each device its tensors, in the same order everywhere.
        destination: The device of the sums, or its number; by default the current.
        buffer_size: Bytes that travel together at most, unless one tensor alone is larger.

    Raises:
        AssertionError: An input is on the CPU (torch's message).
        ValueError: Positions differ in size, or devices in the number of tensors.
        RuntimeError: No input lies on the destination (torch's message).
    """
    with torch.no_grad():
        return tuple(_sums(list(zip(*inputs, strict=True)), destination, buffer_size))


def _sums(
    positions: list[tuple[torch.Tensor, ...]], destination: AnyDevice | None, buffer_bytes: int
) -> list[torch.Tensor]:
    sums: dict[int, torch.Tensor] = {}
    dense: dict[int, list[torch.Tensor]] = {}
    for index, tensors in enumerate(positions):
        # Sparse ones may have different numbers of entries on each device, so they do not fit into one buffer.
        if all(tensor.is_sparse for tensor in tensors):
            sums[index] = reduce_add(tensors, destination)
        else:
            dense[index] = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
            _require_summable(dense[index])
    order = list(dense)
    for members in buffers([dense[index][0] for index in order], buffer_bytes):
        together = [dense[order[member]] for member in members]
        flat = reduce_add([flatten(tensors) for tensors in zip(*together, strict=True)], destination)
        pieces = unflatten(flat, [tensors[0] for tensors in together])
        sums.update(zip((order[member] for member in members), pieces, strict=True))
    return [sums[index] for index in range(len(positions))]

"""Scatter and gather of tensors inside tuples, lists, dicts and namedtuples.

What is not a tensor goes to every device as it is. Gradients flow through both directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from phalanx.devices.comm.gathering import gather
from phalanx.devices.comm.placement import AnyDevice
from phalanx.devices.comm.scattering import scatter


def scatter_structure(structure: Any, devices: Sequence[AnyDevice], dim: int = 0) -> Sequence[Any]:
    """Return one structure per device, each tensor in it cut along a dimension.

    A bare tensor gives a tuple, anything else a list: torch.nn.parallel.scatter does the same.

    Args:
        structure: A tensor, or a tuple, list, dict or namedtuple of structures, or any other object.
        devices: Devices or their numbers.
        dim: The dimension to cut.

    Raises:
        RuntimeError: A tensor can't be cut, or there is no device (torch's message).
    """
    if isinstance(structure, torch.Tensor):
        return scatter(structure, devices, dim=dim)
    if not isinstance(structure, tuple | list | dict) or (len(structure) == 0 and not _is_namedtuple(structure)):
        return [structure for _ in devices]
    parts = structure.items() if isinstance(structure, dict) else structure
    # Pieces run out together: the tensor with the fewest pieces decides how many devices get something.
    columns = zip(*(scatter_structure(part, devices, dim) for part in parts), strict=False)
    return [_rebuilt(structure, column) for column in columns]


def scatter_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], devices: Sequence[AnyDevice], dim: int = 0
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of a call for each device: as many pairs as the longer of the two has pieces.

    Raises:
        RuntimeError: A tensor can't be cut, or there is no device (torch's message).
    """
    all_args = list(scatter_structure(args, devices, dim)) if args else []
    all_kwargs = list(scatter_structure(kwargs, devices, dim)) if kwargs else []
    num_calls = max(len(all_args), len(all_kwargs))
    all_args += [()] * (num_calls - len(all_args))
    all_kwargs += [{} for _ in range(num_calls - len(all_kwargs))]
    return list(zip(all_args, all_kwargs, strict=True))


def gather_structures(structures: Sequence[Any], destination: AnyDevice | None = None, dim: int = 0) -> Any:
    """Return one structure of the same type, its tensors joined along a dimension on one device.

    Tensors without dimensions become a vector, with a warning. None stays None.

    Args:
        structures: One per device, all built alike.
        destination: A device, its number or "cpu"; by default the current device.
        dim: The dimension to join.

    Raises:
        ValueError: Dicts with different numbers of keys, or sequences of different lengths.
        RuntimeError: Tensors that can't be joined (torch's message).
    """
    first = structures[0]
    if isinstance(first, torch.Tensor):
        return gather(_with_dimensions(structures, dim), dim, destination)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(structure) != len(first) for structure in structures):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)(
            (key, gather_structures([each[key] for each in structures], destination, dim)) for key in first
        )
    parts = (gather_structures(column, destination, dim) for column in zip(*structures, strict=True))
    return type(first)._make(parts) if _is_namedtuple(first) else type(first)(parts)


def _with_dimensions(tensors: Sequence[torch.Tensor], dim: int) -> Sequence[torch.Tensor]:
    if dim != 0 or any(tensor.dim() for tensor in tensors):
        return tensors
    warnings.warn(
        "Was asked to gather along dimension 0, but all input tensors were scalars; "
        "will instead unsqueeze and return a vector.",
        stacklevel=3,
    )
    return [tensor.view(1) for tensor in tensors]


def _rebuilt(like: Any, parts: tuple[Any, ...]) -> Any:
    if _is_namedtuple(like):
        return type(like)(*parts)
    # torch gives plain tuples and lists here, whatever subclass came in, but keeps the class of a dict.
    if isinstance(like, dict):
        return type(like)(parts)
    return parts if isinstance(like, tuple) else list(parts)


def _is_namedtuple(structure: Any) -> bool:
    return isinstance(structure, tuple) and hasattr(structure, "_asdict") and hasattr(structure, "_fields")

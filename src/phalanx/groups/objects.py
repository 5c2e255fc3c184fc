"""Collectives for Python objects: ranks exchange the sizes of the pickles first, then their bytes."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from phalanx.engine import RankEndpoint


def _pack(group: RankEndpoint, operation: str, value: Any) -> torch.Tensor:
    """Pickle a value. If that fails, refuse the operation, so that peers do not wait."""
    try:
        data = pickle.dumps(value)
    except Exception as error:
        group.refuse(operation, f"{type(error).__name__}: {error}")
        raise
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# In host memory, whatever the program's default device is: so are the pickled bytes.
def _empty(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="cpu")


def _number(value: int) -> torch.Tensor:
    return torch.tensor([value], device="cpu")


def _unpack(data: torch.Tensor) -> Any:
    # Not by NumPy, which torch does without.
    return pickle.loads(ctypes.string_at(data.data_ptr(), data.numel()))


def all_gather_object(group: RankEndpoint, value: Any) -> list[Any]:
    """Return every rank's value, in rank order, on every rank."""
    data = _pack(group, "all_gather", value)
    sizes = _empty(group.size, torch.int64)
    group.all_gather_single(sizes, _number(data.numel()))
    parts = [_empty(int(size), torch.uint8) for size in sizes]
    group.all_gather(parts, data)
    return [_unpack(part) for part in parts]


def gather_object(group: RankEndpoint, value: Any, root: int = 0) -> list[Any] | None:
    """Return every rank's value on the root, None elsewhere."""
    data = _pack(group, "all_gather", value)
    sizes = _empty(group.size, torch.int64)
    group.all_gather_single(sizes, _number(data.numel()))
    # gather needs blocks of equal size, so shorter pickles are padded.
    block = _empty(int(sizes.max()), torch.uint8).zero_()
    block[: data.numel()] = data
    if group.rank != root:
        group.gather(None, block, root)
        return None
    parts = [torch.empty_like(block) for _ in range(group.size)]
    group.gather(parts, block, root)
    return [_unpack(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]


def broadcast_object(group: RankEndpoint, value: Any = None, root: int = 0) -> Any:
    """Return the root's value on every rank."""
    is_root = group.rank == root
    data = _pack(group, "broadcast", value) if is_root else _empty(0, torch.uint8)
    size = _number(data.numel())
    group.broadcast(size, root)
    if not is_root:
        data = _empty(int(size), torch.uint8)
    group.broadcast(data, root)
    return value if is_root else _unpack(data)


def scatter_object(group: RankEndpoint, values: Sequence[Any] | None = None, root: int = 0) -> Any:
    """Return the root's values[i] on rank i."""
    if group.rank != root:
        block_bytes, sizes = _empty(1, torch.int64), _empty(1, torch.int64)
        group.broadcast(block_bytes, root)
        group.scatter(sizes, None, root)
        block = _empty(int(block_bytes), torch.uint8)
        group.scatter(block, None, root)
        return _unpack(block[: int(sizes)])
    if values is None or len(values) != group.size:
        given = "none" if values is None else str(len(values))
        raise group.refuse(
            "broadcast", f"scatter_object: the root must give {group.size} values, one per rank, not {given}"
        )
    parts = [_pack(group, "broadcast", value) for value in values]
    block_bytes = _number(max(part.numel() for part in parts))
    group.broadcast(block_bytes, root)
    own_size = _empty(1, torch.int64)
    group.scatter(own_size, [_number(part.numel()) for part in parts], root)
    blocks = [torch.nn.functional.pad(part, (0, int(block_bytes) - part.numel())) for part in parts]
    block = _empty(int(block_bytes), torch.uint8)
    group.scatter(block, blocks, root)
    return values[root]

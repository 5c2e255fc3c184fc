"""Pack many tensors into few flat ones, and unpack them with version counters of their own.

One copy per buffer instead of one per tensor. The pieces of a buffer are views of it and would share its version
counter: writing to one would make autograd refuse another that it saved. Nobody sees the buffer itself, so each
piece leaves with a counter of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def buffers(tensors: Sequence[torch.Tensor], buffer_bytes: int) -> Iterator[list[int]]:
    """Yield the positions of tensors that travel together: one type and layout, no more than the size if several."""
    open_buffers: dict[tuple[torch.dtype, torch.layout], tuple[list[int], int]] = {}
    for position, tensor in enumerate(tensors):
        kind = (tensor.dtype, tensor.layout)
        size_bytes = _size_bytes(tensor)
        members, filled = open_buffers.get(kind, ([], 0))
        if members and filled + size_bytes > buffer_bytes:
            yield members
            members, filled = [], 0
        members.append(position)
        open_buffers[kind] = (members, filled + size_bytes)
    for members, _ in open_buffers.values():
        yield members


def _size_bytes(tensor: torch.Tensor) -> int:
    if not tensor.is_sparse:
        return tensor.numel() * tensor.element_size()
    indices, values = tensor._indices(), tensor._values()
    return indices.numel() * indices.element_size() + values.numel() * values.element_size()


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a flat tensor with the elements of all, one after the other."""
    return torch.cat([tensor.detach().contiguous().view(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut a flat tensor into the shapes of others."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [independent(piece.view(tensor.shape)) for piece, tensor in zip(pieces, like, strict=True)]


def independent(piece: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a tensor that has its own version counter and no history."""
    # `.data` and not detach(): only the former starts a new counter.
    return piece.data


def flatten_sparse(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of sparse tensors, each as a flat tensor."""
    return flatten([tensor._indices() for tensor in tensors]), flatten([tensor._values() for tensor in tensors])


def unflatten_sparse(
    flat_indices: torch.Tensor, flat_values: torch.Tensor, like: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Build sparse tensors with the shapes and the number of entries of others."""
    indices = unflatten(flat_indices, [tensor._indices() for tensor in like])
    values = unflatten(flat_values, [tensor._values() for tensor in like])
    return [_sparse(*parts) for parts in zip(indices, values, like, strict=True)]


def _sparse(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        indices, values, like.shape, is_coalesced=like.is_coalesced(), check_invariants=False
    )

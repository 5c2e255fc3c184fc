"""A block of memory in the format of torch's memory snapshots."""

from __future__ import annotations

from typing import Any

from phalanx.virtual_gpus.library import Block

_SMALL_BYTES = 1 << 20  # larger blocks count as the large pool, as in the native part


def segment(device: int, block: Block, stream: int) -> dict[str, Any]:
    """Return a block as a segment of its own: memory is never cached, so blocks are never split.

    Args:
        device: The index of its device.
        block: The block.
        stream: Its stream's number, as programs see it.
    """
    return {
        "device": device,
        "address": block.address,
        "stream": stream,
        "segment_type": "small" if block.requested_bytes < _SMALL_BYTES else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "total_size": block.size_bytes,
        "allocated_size": block.size_bytes,
        "active_size": block.size_bytes,
        "requested_size": block.requested_bytes,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size_bytes,
                "requested_size": block.requested_bytes,
                "state": "active_allocated",
                "frames": [],
            }
        ],
    }

"""The memory in use on all devices, in the shape of torch.cuda.memory_snapshot()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.devices.cuda_face.names import Names
from phalanx.devices.cuda_face.streams import handle_of

if TYPE_CHECKING:
    from phalanx.devices.library import Block, Library

_SMALL_BYTES = 1 << 20  # the native part counts larger ones in the other pool


def names(library: Library) -> Names:
    """Return what torch.cuda needs to take a snapshot."""

    def snapshot(_pool: object = None) -> dict[str, Any]:
        return {
            "segments": [
                _segment(device, block) for device in range(library.num_devices) for block in library.blocks(device)
            ],
            "device_traces": [[] for _ in range(library.num_devices)],
            "external_annotations": [],
            "allocator_settings": {"backend": "virtual GPU (phalanx)"},
        }

    metadata = [""]
    return {
        "torch._C._cuda_memorySnapshot": snapshot,
        "torch._C._cuda_setMemoryMetadata": lambda text: metadata.__setitem__(0, text),
        "torch._C._cuda_getMemoryMetadata": lambda: metadata[0],
    }


def _segment(device: int, block: Block) -> dict[str, Any]:
    """Return a block as a segment of its own: nothing is cached, so nothing is split."""
    return {
        "device": device,
        "address": block.address,
        "stream": handle_of(device, block.stream),
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

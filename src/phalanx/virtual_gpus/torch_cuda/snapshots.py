"""The memory in use on all devices, in the shape of torch.cuda.memory_snapshot()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.patches import Names
from phalanx.virtual_gpus.snapshots import segment
from phalanx.virtual_gpus.torch_cuda.streams import handle_of

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library


def names(library: Library) -> Names:
    """Return what torch.cuda needs to take a snapshot."""

    def snapshot(_pool: object = None) -> dict[str, Any]:
        return {
            "segments": [segment(device, block, handle_of(device, block.stream)) for device, block in library.blocks()],
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

"""Keep torch's own Gloo from tensors of virtual GPUs.

A torch without CUDA calls the part of Gloo that handles GPUs although it is missing: the rank ends with SIGSEGV. If
Gloo does not serve the device, the group raises an error instead.
"""

from __future__ import annotations

from typing import Any

import torch

from phalanx.patches import Names

MODULE = "torch.distributed.distributed_c10d"


def names() -> Names:
    """Return the function that tells a process group which backend serves which device."""
    group_class: Any = torch.distributed.ProcessGroup
    register = group_class._register_backend

    def register_but_gloo(group: Any, device: torch.device, backend_type: Any, backend: Any = None) -> None:
        if device.type == "cuda" and backend_type == group_class.BackendType.GLOO:
            return
        register(group, device, backend_type, backend)

    return {f"{MODULE}.ProcessGroup._register_backend": register_but_gloo}

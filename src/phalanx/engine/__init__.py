"""The native engine: shared-memory segments, and the endpoints through which ranks use them.

Never imports torch: tensors reach the native code through the exchange table on their type.
"""

from __future__ import annotations

from phalanx.engine._native import (
    MAX_RANKS,
    ControlGroups,
    GroupSegment,
    NativeWork,
    RankEndpoint,
    Segment,
    TraceFile,
    admit_device_type,
    available_memory_bytes,
    forget_long_waits,
    num_long_waits,
    on_long_wait,
    open_gate,
    signal_thread,
    usable_cores,
    use_cuda,
)
from phalanx.engine.cores import count_cores, own_affinity
from phalanx.engine.memory import create_group_segment, create_symmetric_segment, naming_shortage

__all__ = [
    "MAX_RANKS",
    "ControlGroups",
    "GroupSegment",
    "NativeWork",
    "RankEndpoint",
    "Segment",
    "TraceFile",
    "admit_device_type",
    "available_memory_bytes",
    "count_cores",
    "create_group_segment",
    "create_symmetric_segment",
    "forget_long_waits",
    "naming_shortage",
    "num_long_waits",
    "on_long_wait",
    "open_gate",
    "own_affinity",
    "signal_thread",
    "usable_cores",
    "use_cuda",
]

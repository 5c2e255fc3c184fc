"""The cores that ranks have together. They may differ from rank to rank, as launchers such as mpiexec pin each one."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from phalanx.engine._native import ControlGroups


def own_affinity() -> str:
    """Return the cores that the calling thread may run on, as the digits of a hexadecimal mask."""
    return f"{sum(1 << core for core in os.sched_getaffinity(0)):x}"


def count_cores(affinities: Sequence[str], crowd: int) -> int:
    """Return how many cores ranks have together, by where each may run and by the time their control group grants.

    Args:
        affinities: What own_affinity() returned on each member.
        crowd: Ranks that compete for the machine's cores, members or not. Where members were pinned, so were the
            others: each of them is taken to have as many cores of its own as a member.
    """
    masks = {int(affinity, 16) for affinity in affinities}
    together = 0
    for mask in masks:
        together |= mask
    cores = together.bit_count()
    if len(masks) > 1:
        cores = cores * max(crowd, len(affinities)) // len(affinities)
    granted = ControlGroups().cores()
    return max(1, cores if granted is None else min(cores, math.ceil(granted)))

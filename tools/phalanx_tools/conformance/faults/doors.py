"""The two ways into phalanx: its own group, and torch.distributed with the backend "phalanx"."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from phalanx.groups.connect import connect
from phalanx.launch.context import current_context

DOORS = ("phalanx", "torch")


@dataclass(frozen=True)
class Door:
    """A rank that has come in.

    Attributes:
        rank: Its number.
        api: What has the operations: a group, or the module torch.distributed.
        set_timeout: Sets how long operations may take from now on.
    """

    rank: int
    api: Any
    set_timeout: Callable[[timedelta], None]


def enter(door: str, folder: Path | None) -> Door:
    """Make the group of all ranks, through one of the doors.

    Args:
        door: Which.
        folder: A place for torch's store that the ranks have in common; None if they are started by `phalanx run`.

    Raises:
        PhalanxError: Not every rank came.
    """
    if door == "phalanx":
        group = connect()
        return Door(group.rank, group, group.set_timeout)
    from phalanx.torch_backend.untyped import dist

    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # some functions have new names
    if folder is None:
        dist.init_process_group("phalanx")
        return Door(dist.get_rank(), dist, dist.group.WORLD.set_timeout)
    context = current_context()
    assert context is not None, "these ranks are started by spawn()"
    place = {"init_method": f"file://{folder}/store", "rank": context.rank, "world_size": context.size}
    dist.init_process_group("phalanx", **place)
    return Door(context.rank, dist, dist.group.WORLD.set_timeout)

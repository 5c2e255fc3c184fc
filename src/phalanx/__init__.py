"""Run distributed PyTorch on one machine.

import phalanx

def train():
    group = phalanx.connect()
    group.all_reduce(tensor)

phalanx.spawn(train, ranks=8)

(PYTEST_DONT_REWRITE: pytest warns of a plugin's package that was imported before pytest unless it says this.)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx import devices, testing
    from phalanx.collectives import Group, ReduceOp, Work
    from phalanx.errors import (
        AbortedError,
        BuildError,
        ClosedError,
        DeadlockError,
        InternalError,
        MismatchError,
        OperationTimeoutError,
        PeerDiedError,
        PeerError,
        PeerFailedError,
        PeerLeftError,
        PhalanxError,
        RaceError,
        RankFailedError,
        SharedMemoryError,
        UsageError,
    )
    from phalanx.groups.connect import connect
    from phalanx.groups.current import current_group
    from phalanx.groups.debugger import breakpoint
    from phalanx.groups.tracing import trace
    from phalanx.launch.spawn import spawn
    from phalanx.stand_in import is_stand_in, stand_in_for
    from phalanx.virtual_gpus.set_up import virtual_devices

    __version__: str

_HOMES = {
    "phalanx.collectives": ("Group", "ReduceOp", "Work"),
    "phalanx.virtual_gpus.set_up": ("virtual_devices",),
    "phalanx.errors": (
        "AbortedError",
        "BuildError",
        "ClosedError",
        "DeadlockError",
        "InternalError",
        "MismatchError",
        "OperationTimeoutError",
        "PeerDiedError",
        "PeerError",
        "PeerFailedError",
        "PeerLeftError",
        "PhalanxError",
        "RaceError",
        "RankFailedError",
        "SharedMemoryError",
        "UsageError",
    ),
    "phalanx.groups.connect": ("connect",),
    "phalanx.groups.current": ("current_group",),
    "phalanx.groups.debugger": ("breakpoint",),
    "phalanx.groups.tracing": ("trace",),
    "phalanx.launch.spawn": ("spawn",),
    "phalanx.stand_in": ("is_stand_in", "stand_in_for"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_SUBPACKAGES = ("devices", "testing")

__all__ = [
    "AbortedError",
    "BuildError",
    "ClosedError",
    "DeadlockError",
    "Group",
    "InternalError",
    "MismatchError",
    "OperationTimeoutError",
    "PeerDiedError",
    "PeerError",
    "PeerFailedError",
    "PeerLeftError",
    "PhalanxError",
    "RaceError",
    "RankFailedError",
    "ReduceOp",
    "SharedMemoryError",
    "UsageError",
    "Work",
    "breakpoint",
    "connect",
    "current_group",
    "devices",
    "is_stand_in",
    "spawn",
    "stand_in_for",
    "testing",
    "trace",
    "virtual_devices",
]


if not TYPE_CHECKING:  # a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that `import phalanx` is fast and needs no torch."""
        if name in _SUBPACKAGES:
            return importlib.import_module(f"phalanx.{name}")
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("phalanx")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
        value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)  # found at once from now on
        return value


def __dir__() -> list[str]:
    """List the public names, for editors and for the completion of Python's prompt."""
    of_python = [name for name in globals() if name.startswith("__") and name.endswith("__")]
    return sorted({*of_python, *__all__, "__version__"})

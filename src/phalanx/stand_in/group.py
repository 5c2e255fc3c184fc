"""A process group that has the name of another backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from phalanx.collectives import LocalGroup
from phalanx.groups import stream_order
from phalanx.stand_in import group_creation
from phalanx.torch_backend.creation import join_group
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import Store, c10d

_log = logging.getLogger("phalanx")
DEFAULT_TIMEOUT = timedelta(minutes=30)


class StandInGroup(PhalanxProcessGroup):
    """The base class of all stand-ins.

    Attributes:
        stands_in_for: The name of the backend that it replaces.
    """

    stands_in_for: ClassVar[str]
    supports_splitting = False

    def __init__(
        self, group: LocalGroup, store: Store, *, name: str, device_types: Sequence[str] | None = None
    ) -> None:
        backend_name = type(self).stands_in_for
        types = device_types or ("cpu", *stream_order.device_types())
        super().__init__(group, store, name=name, backend_name=backend_name, device_types=types)

    def __repr__(self) -> str:
        return f"<phalanx standing in for {self.stands_in_for}: {self._group!r}>"

    def _log_stand_in(self) -> None:
        """Log once, for all ranks and later groups, that phalanx serves them."""
        made = group_creation.current()
        if self.rank() == 0 and (made is None or made.is_default):
            text = "phalanx is standing in for %s: %d ranks exchange data through memory of this machine"
            _log.warning(text, self.stands_in_for, self.size())

    def name(self) -> str:
        """Return the backend's name as torch would return it: "nccl" if NCCL serves one of its devices."""
        names = self._others.names().values()
        return "nccl" if "nccl" in names else self._backend_name

    getBackendName = _get_backend_name = name


def join_ranks(store: Store, rank: int, size: int, timeout: timedelta) -> tuple[LocalGroup, str]:
    """Meet the other ranks of the group that torch is making; return the engine's group and its name.

    Raises:
        UsageError: A rank is on another host.
        OperationTimeoutError: A rank is missing.
    """
    made = group_creation.current()
    name = made.name if made is not None else ""
    ranks = made.ranks if made is not None and made.ranks else range(size)
    return join_group(store, rank, size, timeout, ranks=ranks, name=name), name


def is_stand_in(group: Any = None) -> bool:
    """Tell whether a process group is a stand-in for another backend.

    Args:
        group: A process group of torch.distributed; the default group if not given.

    Raises:
        ValueError: There is no default group.
    """
    chosen = c10d._get_default_group() if group is None else group
    if not isinstance(chosen, PhalanxProcessGroup):
        return False
    return any(isinstance(engine, StandInGroup) for engine in (chosen, *chosen.engines()))

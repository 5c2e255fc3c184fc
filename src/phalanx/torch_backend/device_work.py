"""Operations on tensors of devices that have streams, as torch sees them.

The host waits for the data; then the current stream takes its place behind the operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from phalanx.collectives import Work
from phalanx.errors import PhalanxError
from phalanx.groups.stream_order import StreamOrder
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.effects import Effects
from phalanx.torch_backend.future import ready_future
from phalanx.torch_backend.profiling import CommsRecorder, is_enabled
from phalanx.torch_backend.rules import Rules, translated
from phalanx.torch_backend.work import PendingWork

_NO_TIMEOUT = timedelta(0)
_MANY, _FEW = 512, 8


class RecentWorks:
    """Keeps works alive that only C++ holds: it would find their Python half gone.

    They hold memory of a device, so one that has been waited for stays a little while only. One thread at a time.
    """

    def __init__(self) -> None:
        self._pending: deque[object] = deque(maxlen=_MANY)
        self._waited_for: deque[object] = deque(maxlen=_FEW)

    def add(self, work: object) -> None:
        """Keep a work that has started."""
        self._pending.append(work)

    def is_waited_for(self, work: object) -> None:
        """Keep it no longer than whoever has waited for it needs to ask for its result."""
        if work in self._pending:
            self._pending.remove(work)
            self._waited_for.append(work)


@dataclass
class Habits:
    """How a group goes about operations on devices.

    Attributes:
        rules: What it refuses.
        comms: Who describes its operations to the profiler.
        recent: Works that are kept alive.
    """

    rules: Rules | None = None
    comms: CommsRecorder | None = None
    recent: RecentWorks = field(default_factory=RecentWorks)


@dataclass(frozen=True)
class Ticket:
    """An operation's place between the work of its device's streams."""

    order: StreamOrder
    ticket: object

    @classmethod
    def draw(cls, order: StreamOrder, effects: Effects, lane: int) -> Ticket:
        """Put an operation behind the current stream; one without tensors, such as a barrier, has no place there.

        Args:
            lane: Stands for the group.
        """
        reads, writes = effects.reads(), effects.writes()
        if not reads and not writes:
            return cls(order, None)
        return cls(order, order.launch(reads, writes, operation=effects.event, lane=lane))

    def wait(self) -> None:
        """Put the current stream behind the operation, which is over."""
        if self.ticket is not None:
            self.order.wait(self.ticket)


class DeviceWork(PendingWork):
    """An operation on tensors of a device that has streams. Waiting orders the current stream behind it."""

    def __init__(
        self,
        work: Work,
        result: list[Any],
        completer: Completer,
        tickets: Sequence[Ticket],
        habits: Habits,
    ) -> None:
        super().__init__(work, result, completer)
        self._tickets = list(tickets)
        self._habits = habits

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until it is done; what the current stream does next comes after it.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        comms = self._habits.comms
        if comms is not None and is_enabled():
            comms.end(comms.begin("wait", [], [], 0))
        return self._wait_in_order(timeout)

    def _wait_in_order(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        try:
            super().wait(timeout)
        except PhalanxError as error:
            raise translated(error, self._habits.rules) from error.__cause__
        for ticket in self._tickets:
            ticket.wait()
        self._habits.recent.is_waited_for(self)
        return True

    def block_current_stream(self) -> None:
        """Wait: work of virtual devices runs when it is called."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a completed future: callbacks run at once and in the same order on every rank, as with NCCL.

        Raises:
            PhalanxError: The operation has failed.
        """
        if self._future is None:
            self._wait_in_order()
            self._future = ready_future(self._result)
        return self._future

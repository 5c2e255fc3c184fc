"""Operations on tensors of devices that have streams, as torch sees them.

The host waits for the data; then the current stream takes its place behind the operation. On virtual devices, which
run their work when it is called, callers get futures that are completed; on GPUs, those that still have to be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch

from phalanx.groups.stream_order import StreamOrder
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.effects import Effects, flat
from phalanx.torch_backend.future import future_of, promised_future, ready_future
from phalanx.torch_backend.habits import Habits
from phalanx.torch_backend.outcome import Outcome
from phalanx.torch_backend.profiling import is_enabled
from phalanx.torch_backend.work import PendingWork

_NO_TIMEOUT = timedelta(0)


class Waitable(Protocol):
    """What is ordered behind an operation once that is over."""

    def wait(self) -> None:
        """Put it there."""


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
        if not order.runs_at_once:  # the engine has put it behind the current stream
            return cls(order, None)
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
        outcome: Outcome,
        result: list[Any],
        completer: Completer,
        tickets: Sequence[Ticket],
        habits: Habits,
        *,
        may_promise: bool = False,
    ) -> None:
        """Make one.

        Args:
            outcome: The operation.
            result: The tensors it fills.
            completer: Completes its future.
            tickets: Its places between the work of streams.
            habits: Of its group.
            may_promise: Whether Python code may get its future on the way: see pending_futures.py.
        """
        super().__init__(outcome, result, completer)
        self._may_promise = may_promise
        self._outcome = outcome
        self._runs_at_once = all(ticket.order.runs_at_once for ticket in tickets)
        self._tickets: list[Waitable] = [*tickets]
        self._habits = habits

    def also_orders(self, ticket: Waitable) -> None:
        """Have one more thing ordered behind it by those who wait."""
        self._tickets.append(ticket)

    def let_go(self) -> None:
        """Forget the tensors."""
        self._result = []

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until it is done; what the current stream does next comes after it.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        comms = self._habits.comms
        if comms is not None and is_enabled():
            comms.end(comms.begin("wait", [], [], 0))
        return self._wait_in_order(timeout, by_python=_is_called_from_python("wait"))

    def _wait_in_order(self, timeout: timedelta = _NO_TIMEOUT, *, by_python: bool) -> bool:
        super().wait(timeout)
        self._order()
        self._habits.recent.is_waited_for(self._outcome, by_python=by_python)
        return True

    def _order(self) -> None:
        for ticket in self._tickets:
            ticket.wait()

    def is_completed(self) -> bool:
        """Tell whether it has ended, well or not. Who has seen that it has may rely on it, as on an event's query()."""
        is_over = super().is_completed()
        if is_over:
            self._order()
        return is_over

    def is_success(self) -> bool:
        """Tell whether it has ended well, in the same way."""
        is_well = super().is_success()
        if is_well:
            self._order()
        return is_well

    def block_current_stream(self) -> None:
        """Wait: the host does, and with it whatever it gives the stream to do next."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future whose callbacks run in the same order on every rank, as with NCCL.

        That of a virtual device's tensors is complete, and callbacks run at once. Those of a GPU's may be on their way.

        Raises:
            PhalanxError: The operation has failed.
        """
        if self._future is None:
            by_python = _is_called_from_python("get_future")
            devices = self._streamed_devices()
            if not by_python and not self._runs_at_once:
                self._future = future_of(self._outcome, self._result, self._completer, devices)
            elif devices and self._may_promise:
                self._future = promised_future(self._outcome, self._result, self._completer, devices)
            else:
                self._wait_in_order(by_python=by_python)
                self._future = ready_future(self._result, devices)
        return self._future

    def _streamed_devices(self) -> list[torch.device]:
        """Return the devices whose streams run behind the host."""
        return [] if self._runs_at_once else list({tensor.device for tensor in flat(self._result)})


def _is_called_from_python(name: str) -> bool:
    """Tell whether Python code called the method that asks: then the calling frame names it."""
    try:
        caller = sys._getframe(2)
    except ValueError:
        return False  # a thread of C++
    return name in caller.f_code.co_names

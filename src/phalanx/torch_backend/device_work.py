"""Operations on tensors of devices that have streams, as torch sees them.

The host waits for the data. Then the current stream continues after the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from phalanx.collectives import Work
from phalanx.groups.coalescing import CombinedWork
from phalanx.torch_backend.caller import is_called_from_python
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.future import future_for_cpp, future_for_python, ready_future
from phalanx.torch_backend.operation import Operation, flat
from phalanx.torch_backend.profiling import CommsRecorder, is_enabled
from phalanx.torch_backend.work import NO_TIMEOUT, PendingWork


class DeviceWork(PendingWork):
    """Operations on tensors of a device that has streams, as one Work. wait() orders the current stream after them."""

    def __init__(
        self,
        works: Sequence[Work],
        result: list[Any],
        completer: Completer,
        *,
        comms: CommsRecorder | None = None,
        may_be_pending: bool = False,
    ) -> None:
        """Make one.

        Args:
            works: The operations; some may be Operations of device tensors.
            result: The tensors that they fill.
            completer: Completes its future.
            comms: Records the wait for the profiler.
            may_be_pending: Whether Python code may get its future while the operation runs: see future.py.
        """
        super().__init__(works[0] if len(works) == 1 else CombinedWork(works), result, completer)
        operations = [work for work in works if isinstance(work, Operation)]
        self._comms = comms
        self._may_be_pending = may_be_pending
        self._runs_at_once = all(operation.order.runs_at_once for operation in operations)
        self._after: list[Callable[[], object]] = [operation.order_stream for operation in operations]

    def call_after(self, act: Callable[[], object]) -> None:
        """Register a function that every wait() calls at its end."""
        self._after.append(act)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until it is done; later work on the current stream runs after it.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        if self._comms is not None and is_enabled():
            self._comms.end(self._comms.begin("wait", [], [], 0))
        return self._wait_in_order(timeout)

    def _wait_in_order(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        super().wait(timeout)
        return self._order_streams()

    def _order_streams(self) -> bool:
        for act in self._after:
            act()
        return True

    def is_completed(self) -> bool:
        """Tell whether it has ended, with or without an error; if so, its result may be used, as after a query()."""
        return super().is_completed() and self._order_streams()

    def is_success(self) -> bool:
        """Tell whether it has succeeded; if so, the result may be used."""
        return super().is_success() and self._order_streams()

    def block_current_stream(self) -> None:
        """Wait on the host, so that later work on the current stream runs after the operation."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future whose callbacks run in the same order on every rank, as with NCCL.

        On virtual devices it is completed, and callbacks run at once. On GPUs it may be pending.

        Raises:
            PhalanxError: The operation has failed.
        """
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> torch.futures.Future[Any]:
        # The devices whose streams run asynchronously to the host.
        devices = [] if self._runs_at_once else list({tensor.device for tensor in flat(self._result)})
        if not self._runs_at_once and not is_called_from_python("get_future"):
            return future_for_cpp(self._work, self._result, self._completer, devices)
        if devices and self._may_be_pending:
            return future_for_python(self._work, self._result, self._completer, devices)
        self._wait_in_order()
        return ready_future(self._result, devices)

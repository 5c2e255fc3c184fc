"""How a group puts its operations in order with the streams of a device, and which operations are pending there.

A device type registers its StreamOrder here, and groups look it up by the device type of their tensors.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from phalanx.errors import PeerLeftError
from phalanx.launch.context import current_thread_rank, has_failed
from phalanx.patches import Patches

_BACKEND = "phalanx"
_patches = Patches(
    "groups begin to serve a type of devices", undo="never: torch keeps a device type for the rest of the process"
)
_log = logging.getLogger("phalanx")


class PendingOperation(Protocol):
    """A running operation that `synchronize()` of its device waits for. Threads may share it."""

    def done(self) -> bool:
        """Tell whether it has ended, with or without an error."""

    def finish(self) -> None:
        """Block until it has ended, with or without an error."""

    def unreported(self) -> BaseException | None:
        """Return its failure if it has not been raised in the program yet; do not wait."""

    def report(self) -> None:
        """Note that the program has got the failure."""


_Operations = dict[PendingOperation, object]  # with their owners


def _ignore(_: int) -> None:
    """Do nothing."""


def _own(operations: _Operations) -> _Operations:
    """Return the operations of the calling rank, or all of them if ranks are not threads."""
    caller = current_thread_rank()
    return {one: owner for one, owner in operations.items() if caller is None or owner is caller}


class StreamOrder:
    """The streams of one device type, and the pending operations on its devices. Threads may share it.

    On a GPU, a program may wait for a collective by synchronizing the device. So synchronizing waits for the pending
    operations and raises their failures. If a failure is still unreported when the program ends, the exit code is 1.

    A rank that is a thread waits only for its own operations, because an operation of another rank may be waiting for
    this rank. Every other caller waits for all operations.

    Args:
        count: Called with the change whenever the number of pending operations changes.

    Attributes:
        runs_at_once: Whether work on the device is done when the call that starts it returns.
    """

    runs_at_once: bool

    def __init__(self, count: Callable[[int], None] = _ignore) -> None:
        self._count = count
        self._lock = threading.Lock()  # guards _pending and _failed
        self._pending: _Operations = {}  # running, or failed and not reported
        self._failed: _Operations = {}  # failed while a caller synchronized, and not reported

    def launch(self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, operation: str, group_number: int) -> object:
        """Let an operation run after the work on the current stream; return its position, or None if it needs none.

        Call this before the operation starts.

        Args:
            operation: Its name, for error messages.
            group_number: A number for the group, whose operations run one after the other.
        """
        return None

    def wait(self, position: object) -> None:
        """Let the current stream continue after the operation at this position, which has ended."""

    def finish_stream(self) -> None:
        """Block until the current stream is done, if this process uses the device."""

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        """Add an operation that has started.

        Args:
            owner: Its rank, as current_thread_rank() returns it; None if ranks are not threads.
        """
        with self._lock:
            over = [other for other in self._pending if other.done()]
        for other in over:
            other.finish()  # does not wait; it releases the tensors
        if over:
            self._take_out(over)
        with self._lock:
            self._pending[operation] = owner
            self._count(1)

    def finish_pending(self) -> None:
        """Wait for all pending operations. Never raises: failures are kept for raise_failure()."""
        with self._lock:
            pending = _own(self._pending)
        for operation in pending:
            operation.finish()
        # Another thread may do the same meanwhile. Each waits for all operations, and the first removes them.
        taken = self._take_out(pending, with_failures=True)
        with self._lock:
            self._failed |= {operation: owner for operation, owner in taken.items() if operation.unreported()}

    def raise_failure(self, *, is_last: bool = False) -> None:
        """Raise the failure of an operation that the program waited for only by synchronizing.

        Args:
            is_last: Whether to raise failures of operations that the program did not wait for, too.

        Raises:
            BaseException: The first such failure, which then counts as reported.
        """
        if self._failed or is_last:
            errors = self._take(_own, with_pending=is_last)
            if errors:
                raise errors[0]

    def take_failure(self) -> BaseException | None:
        """Return the first failure that has not been raised in the program, and mark it as reported."""
        return next(iter(self._take(_own, with_pending=True)), None)

    def _take(self, choose: Callable[[_Operations], _Operations], *, with_pending: bool) -> list[BaseException]:
        with self._lock:
            failed = choose(self._failed)
            looked_at = failed | choose(self._pending) if with_pending else failed
            unreported = [(one, error) for one in looked_at if (error := one.unreported()) is not None]
            self._failed = {one: owner for one, owner in self._failed.items() if one not in failed}
        for operation, _ in unreported:
            operation.report()
        return [error for _, error in unreported]

    def _take_out(self, ended: Iterable[PendingOperation], *, with_failures: bool = False) -> _Operations:
        """Remove ended operations; those with an unreported failure stay unless `with_failures`."""
        with self._lock:
            taken = {one for one in ended if with_failures or one.unreported() is None}
            gone = {one: owner for one, owner in self._pending.items() if one in taken}
            self._count(-len(gone))
            self._pending = {one: owner for one, owner in self._pending.items() if one not in taken}
        return gone

    def forget(self) -> None:
        """Forget everything in a forked child: the pending operations belong to its parent."""
        self._lock = threading.Lock()
        self._count(-len(self._pending))
        self._pending, self._failed = {}, {}

    def end(self) -> None:
        """End the process if an operation has failed unnoticed, as NCCL's watchdog would have done earlier."""
        if has_failed():
            return
        # An operation that ran until a rank ended does not count as failed, as with NCCL.
        errors = [e for e in self._take(dict, with_pending=True) if not isinstance(e, PeerLeftError)]
        if errors:
            _log.error(
                "a collective failed, and the program ended without having waited for it; its results are wrong\n"
                "  do       call work.wait() or torch.cuda.synchronize() before you use results\n%s",
                errors[0],
            )
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # nothing else changes the exit code at this point


# By device type. Only orders() writes it. Every operation checks whether it is empty, so it is not behind a function.
registered: dict[str, StreamOrder] = {}


def orders(device_type: str, order: StreamOrder) -> None:
    """Register a device type, so that groups serve its tensors and call `order`."""
    registered[device_type] = order
    _tell_torch(device_type)


def order_of(device_type: str) -> StreamOrder | None:
    """Return the registered order of a device type, or None."""
    return registered.get(device_type)


def is_virtual(device_type: str) -> bool:
    """Tell whether a device type is registered and its devices are virtual."""
    order = registered.get(device_type)
    return order is not None and order.runs_at_once


def device_types() -> list[str]:
    """Return the registered device types."""
    return list(registered)


def _tell_torch(device_type: str) -> None:
    """Let init_process_group() serve this device type with phalanx, with and without a backend's name."""
    backends = dist.Backend
    served = backends.backend_capability.get(_BACKEND)
    if served is not None and device_type not in served:
        why = 'init_process_group("phalanx") serves the device too'
        _patches.set_item("torch.distributed.Backend.backend_capability", _BACKEND, [*served, device_type], why)
    if device_type not in backends.default_device_backend_map:
        why = "init_process_group() without a backend serves the device"
        _patches.set_item("torch.distributed.Backend.default_device_backend_map", device_type, _BACKEND, why)

"""Start operations and keep track of them: on the caller's thread or in the background, one or several at once."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phalanx.collectives import LocalGroup, Work
from phalanx.errors import ClosedError, PhalanxError, UsageError
from phalanx.groups import stream_order
from phalanx.groups.coalescing import CombinedWork, launch_all
from phalanx.groups.stream_order import StreamOrder, registered
from phalanx.launch.context import current_thread_rank
from phalanx.torch_backend import naming, profiling, versions
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.device_work import DeviceWork
from phalanx.torch_backend.future import pending_futures
from phalanx.torch_backend.operation import GroupErrors, Operation, enter_stream, flat
from phalanx.torch_backend.other_devices import OtherDevices
from phalanx.torch_backend.rules import MESSAGES, Rules
from phalanx.torch_backend.untyped import ProcessGroup, Store
from phalanx.torch_backend.work import FinishedWork, PendingWork

_log = logging.getLogger("phalanx")
_group_numbers = itertools.count()  # numbers the groups of a process in the order in which they were made


class _Coalescing(threading.local):
    """What a thread has started since its coalescing block began; None outside a block."""

    works: list[Work] | None = None


class _Call(NamedTuple):
    """One call of an operation: the arguments of _launch()."""

    event: str
    shown: Sequence[Tensor]
    result: list[Any]
    options: CallOptions
    call: Callable[..., Any]
    args: Sequence[Any]


class LaunchingGroup(naming.NamedGroup):
    """A group that can start operations and can be shut down."""

    _rules: Rules | None = None
    _comms: profiling.CommsRecorder | None = None

    def __init__(
        self,
        group: LocalGroup,
        store: Store,
        *,
        name: str,
        backend_name: str,
        device_types: Sequence[str] | None = None,
    ) -> None:
        super().__init__(group.rank, group.size, store, name=name, backend_name=backend_name)
        self._group = group
        # Read once, here, because backward() may start operations on torch's own threads.
        self._owner = current_thread_rank()
        self._errors = GroupErrors()
        self._meeting_type = "cpu"  # the device whose streams a barrier is ordered with
        cancel = group.leave
        self._completer = Completer("phalanx-futures", cancel)
        self._event_completer = Completer("phalanx-events", cancel)  # own thread: futures must not wait for messages
        self._others = OtherDevices(self, store, device_types or ("cpu", *stream_order.device_types()))
        self._coalescing = _Coalescing()
        self._group_number = next(_group_numbers)
        self._num_calls = 0
        self._options = naming.Options(backend_name, timedelta(seconds=group.timeout_s), list(group.ranks), name)

    def _keep_to(self, rules: Rules) -> None:
        """Refuse the calls that these rules refuse, and raise errors in their form."""
        self._rules = self._errors.rules = rules

    def _launch(
        self,
        event: str,
        shown: Sequence[Tensor],
        result: list[Any],
        options: CallOptions,
        call: Callable[..., Any],
        *args: Any,
    ) -> FinishedWork | None:
        """Start one operation; `shown` are the tensors that the profiler shows.

        Returns:
            The work. If the caller has to wait anyway, None after the operation, which torch takes for done; but a
            receive always returns a work, which knows the sender.
        """
        self._num_calls += 1
        if pending_futures.open and event not in MESSAGES:
            pending_futures.await_own()
        if self._rules is not None:
            self._rules.check(event, shown, result, options)
        # If so, it runs on this thread and needs no Work.
        is_waited_for = not options.is_async and self._coalescing.works is None and not profiling.is_enabled()
        if registered and (order := self._order_for(shown)) is not None:
            return self._launch_on_device(order, _Call(event, shown, result, options, call, args), is_waited_for)
        if is_waited_for:
            # Without keywords Python makes no dictionary for them.
            limit = options.timeout_s
            source = call(*args) if limit is None else call(*args, timeout_s=limit)
            return None if source is None else FinishedWork.of(result, source)
        with profiling.ProfilerEvent(self._backend_name, event, shown) as recording:
            native = call(*args, timeout_s=options.timeout_s, async_op=True)
        self._finish_later(recording, native)
        if self._coalescing.works is not None:
            self._coalescing.works.append(native)
        return PendingWork(native, result, self._completer)

    def _launch_on_device(self, order: StreamOrder, given: _Call, is_waited_for: bool) -> FinishedWork | None:
        """Start one operation on tensors of a device that has streams."""
        event, shown, result, options, call, args = given
        order.raise_failure()
        is_root = options.root == self._rank_of_self
        position = enter_stream(order, event, shown, result, is_root=is_root, group_number=self._group_number)
        if is_waited_for:
            try:
                source = call(*args, timeout_s=options.timeout_s)
            except PhalanxError as error:
                self._errors.raise_reported(error)
            if position is not None:
                order.wait(position)
            return None if source is None else FinishedWork.of(result, source)
        operation = Operation(order, position, self._errors)
        with profiling.ProfilerEvent(self._backend_name, event, shown) as recording:
            if self._comms is not None:
                recording.describe(self._comms, event, shown, result, self._num_calls)
            native = operation.start(call, args, options.timeout_s)
        self._finish_later(recording, native)
        order.started(operation, owner=self._owner)
        if self._coalescing.works is not None:
            self._coalescing.works.append(operation)
        # A message may be very late, and a rank that is a thread must not wait for another rank's callbacks.
        may_be_pending = event not in MESSAGES and self._owner is None
        return DeviceWork([operation], result, self._completer, comms=self._comms, may_be_pending=may_be_pending)

    def _order_for(self, tensors: Sequence[Tensor]) -> StreamOrder | None:
        """Return the order of the device that an operation runs on; None for the CPU, and for sparse tensors."""
        if not tensors:
            return stream_order.order_of(self._meeting_type)
        first = tensors[0]
        return None if first.is_cpu or first.is_sparse else stream_order.order_of(first.device.type)

    def _launch_each(
        self, event: str, result: list[Any], options: CallOptions, calls: Sequence[tuple[Any, ...]]
    ) -> FinishedWork | None:
        """Start several operations as one; each is given as a method of the group and its arguments."""
        shown = list(flat([call[2]] if isinstance(call[2], Tensor) else call[2] for call in calls))
        return self._launch(event, shown, result, options._replace(is_async=True), self._call_each, calls)

    def _call_each(
        self, calls: Sequence[Sequence[Any]], *, timeout_s: float | None = None, async_op: bool = False
    ) -> CombinedWork | None:
        work = CombinedWork(launch_all(self._group.refuse, [
            (call.__name__, functools.partial(call, *args, timeout_s=timeout_s, async_op=True))
            for call, *args in calls
        ]))  # fmt: skip
        if async_op:
            return work
        work.wait()
        return None

    def _finish_later(self, recording: profiling.ProfilerEvent, work: Work) -> None:
        if not recording.is_open:
            return
        if versions.EVENTS_MAY_END_ELSEWHERE:
            self._event_completer.when_done(work, recording.finish)
        else:
            recording.finish()

    def _start_coalescing(self, device: torch.device) -> Any:
        engine = self._others.engine_for(torch.device(device))
        if engine is not None:
            return engine._start_coalescing(device)
        self._coalescing.works = []
        return None

    def abandon_coalescing(self) -> None:
        """Forget the operations of a coalescing block that raised. They go on."""
        self._coalescing.works = None

    def _end_coalescing(self, device: torch.device) -> Any:
        engine = self._others.engine_for(torch.device(device))
        if engine is not None:
            return engine._end_coalescing(device)
        works, self._coalescing.works = self._coalescing.works, None
        if works is None:
            raise UsageError("coalescing has not begun")
        if any(isinstance(work, Operation) for work in works):
            return DeviceWork(works, [], self._completer, comms=self._comms)
        return PendingWork(CombinedWork(works), [], self._completer)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long operations without a timeout of their own may take.

        Raises:
            UsageError: It is not positive.
        """
        self._group.set_timeout(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Wait for operations under way and the callbacks of their futures, then leave.

        Raises:
            PhalanxError: An operation on a device has failed, and its error has not been raised yet.
        """
        try:
            pending_futures.await_all()
            self._others.shutdown()
        finally:
            self._group.close()
            self._completer.stop()
            self._event_completer.stop()
        if registered:
            self._raise_unreported()

    def _raise_unreported(self) -> None:
        """Raise a failure that was not raised in the program yet; if the program handles another exception, log it."""
        for order in registered.values():
            if sys.exc_info()[1] is None:
                order.raise_failure(is_last=True)
            elif (error := order.take_failure()) is not None:
                _log.error("an operation had failed before process group %s ended: %s", self.group_name, error)

    def abort(self) -> None:
        """Break the group: every rank that waits in it gets an error at once."""
        self._errors.report()
        self._others.abort()
        try:
            self._group.abort("abort() was called on the process group")
        except ClosedError:
            return
        self._completer.stop()
        self._event_completer.stop()

    @property
    def options(self) -> naming.Options:
        """The options that the group was made with, such as its timeout."""
        return self._options

    def _get_sequence_number_for_group(self) -> int:
        return self._num_calls

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: numbers begin at 0 on every rank."""

    @property
    def _device_types(self) -> list[torch.device]:
        return self._others.device_types()

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that this rank is bound to, if phalanx serves it; torch then splits the backend of that device."""
        device: torch.device | None = super().bound_device_id
        return device if device is not None and self._others.is_served(device.type) else None

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        ProcessGroup.bound_device_id.__set__(self, device)

    def make_engines(self) -> None:
        """Make the engines for devices that other backends serve, now and not on first use. All ranks must call it."""
        self._others.make_all()

    def engines(self) -> list[Any]:
        """Return the groups that serve this group's other devices."""
        return self._others.engines()

    def _get_backend(self, device: torch.device) -> Any:
        return self._others.backend_for(torch.device(device))

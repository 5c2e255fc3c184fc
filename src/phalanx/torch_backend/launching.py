"""Starting operations and looking after them: on the caller's thread or behind it, alone or several as one."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import Work
from phalanx.engine import RankEndpoint
from phalanx.errors import ClosedError, PhalanxError, UsageError
from phalanx.groups import stream_order
from phalanx.groups.coalescing import CombinedWork, launch_all
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.groups.stream_order import StreamOrder, registered
from phalanx.launch.context import current_thread_rank
from phalanx.torch_backend import naming, profiling, sparse, versions
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.device_work import DeviceWork, Ticket
from phalanx.torch_backend.effects import Effects
from phalanx.torch_backend.habits import Habits
from phalanx.torch_backend.lending import Loan
from phalanx.torch_backend.other_devices import MESSAGES, OtherDevices
from phalanx.torch_backend.outcome import Outcome
from phalanx.torch_backend.pending_futures import pending_futures
from phalanx.torch_backend.rules import translated
from phalanx.torch_backend.untyped import ProcessGroup, Store
from phalanx.torch_backend.work import FinishedWork, PendingWork

_RECENT_WORKS = 512
_SMALL_BYTES = 4096
_log = logging.getLogger("phalanx")
_lanes = itertools.count()  # tells the groups of a process apart, in the order in which they were made


class _Coalescing(threading.local):
    """What a thread has started since its coalescing block began."""

    def __init__(self) -> None:
        self.works: list[Work] | None = None
        self.tickets: list[Ticket] = []


class LaunchingGroup(naming.NamedGroup):
    """A group that can start operations, and end."""

    def __init__(
        self,
        group: SharedMemoryGroup,
        store: Store,
        *,
        name: str,
        backend_name: str,
        device_types: Sequence[str] | None = None,
    ) -> None:
        super().__init__(group.rank, group.size, store, name=name, backend_name=backend_name)
        self._group = group
        # Not asked for with every operation: backward() may start some on threads of torch's own.
        self._owner = current_thread_rank()
        self._habits = Habits()
        self._meeting_type = "cpu"  # the device whose streams a barrier is ordered with
        cancel = functools.partial(RankEndpoint.close, group)
        self._completer = Completer("phalanx-futures", cancel)
        self._event_completer = Completer("phalanx-events", cancel)  # apart: a future must not wait for a late message
        self._others = OtherDevices(self, store, device_types or ("cpu", *stream_order.device_types()))
        self._coalescing = _Coalescing()
        self._lane = next(_lanes)
        self._num_calls = 0
        # A Work that Python hands to C++ loses its Python half when Python lets go of it. DDP does that with small
        # ones: they stay for a while.
        self._recent: deque[FinishedWork] = deque(maxlen=_RECENT_WORKS)
        self._options = naming.Options(backend_name, timedelta(seconds=group.timeout_s), list(group.ranks), name)

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
            The work; None when it is over, and was not asked to go on behind the caller: torch takes that for done. A
            receive has one in any case, which knows the sender.
        """
        self._num_calls += 1
        if pending_futures.open and event not in MESSAGES:
            pending_futures.await_own()
        if self._habits.rules is not None:
            self._habits.rules.check(event, shown, result, options)
        # Then it runs on this thread, and there is nothing to keep of it.
        is_waited_for = not options.is_async and self._coalescing.works is None and not profiling.is_enabled()
        if registered and (order := self._order_for(shown)) is not None:
            order.raise_failure()
            if is_waited_for and not order.runs_at_once:  # the engine sees to the streams
                return self._run_on_device(result, options, call, args)
            effects = Effects(event, shown, result, options.root == self._rank_of_self)
            ticket = Ticket.draw(order, effects, self._lane)
            if is_waited_for:
                work = self._run_on_device(result, options, call, args)
                ticket.wait()
                return work
            return self._launch_on_device(ticket, effects, options, call, args)
        if is_waited_for:
            # Without keywords Python makes no dictionary for them.
            limit = options.timeout_s
            source = call(*args) if limit is None else call(*args, timeout_s=limit)
            return None if source is None else FinishedWork.of(result, source)
        with profiling.Recording(self._backend_name, event, shown) as recording:
            native = call(*args, timeout_s=options.timeout_s, async_op=True)
        self._finish_later(recording, native)
        return self._keep(native, result)

    def _launch_on_device(
        self, ticket: Ticket, effects: Effects, options: CallOptions, call: Callable[..., Any], args: Sequence[Any]
    ) -> FinishedWork:
        """Do that with tensors of a device that has streams, behind the caller."""
        loan = Loan(args)
        with self._record(*effects[:3]) as recording:
            native = call(*loan.arguments, timeout_s=options.timeout_s, async_op=True)
        self._finish_later(recording, native)
        outcome = Outcome(native, self._habits, [loan])
        return self._keep_on_device(outcome, effects.result, ticket, is_message=effects.event in MESSAGES)

    def _run_on_device(
        self, result: list[Any], options: CallOptions, call: Callable[..., Any], args: Sequence[Any]
    ) -> FinishedWork | None:
        try:
            source = call(*args, timeout_s=options.timeout_s)
        except PhalanxError as error:
            self._habits.telling.told()
            raise translated(error, self._habits.rules) from error.__cause__
        return None if source is None else FinishedWork.of(result, source)

    def _keep_on_device(
        self, outcome: Outcome, result: list[Any], ticket: Ticket, *, is_message: bool = False
    ) -> FinishedWork:
        ticket.order.started(outcome, owner=self._owner)
        if self._coalescing.works is not None:
            self._coalescing.works.append(outcome)
            self._coalescing.tickets.append(ticket)
        # A message may be late for long; and a rank that is a thread must not wait for another's callbacks.
        may_promise = not is_message and self._owner is None
        work = DeviceWork(outcome, result, self._completer, [ticket], self._habits, may_promise=may_promise)
        if _is_small(result):
            self._habits.recent.add(outcome, work)
        return work

    def _order_for(self, tensors: Sequence[Tensor]) -> StreamOrder | None:
        """Return the order of the device that an operation runs on; None for the CPU."""
        if not tensors:
            return stream_order.order_of(self._meeting_type)
        return None if tensors[0].is_cpu else stream_order.order_of(tensors[0].device.type)

    def _record(self, event: str, shown: Sequence[Tensor], result: Sequence[Any]) -> profiling.Recording:
        recording = profiling.Recording(self._backend_name, event, shown)
        if self._habits.comms is not None:
            recording.describe(self._habits.comms, event, shown, result, self._num_calls)
        return recording

    def _launch_each(
        self, event: str, result: list[Any], options: CallOptions, calls: Sequence[tuple[Any, ...]]
    ) -> FinishedWork:
        """Start several operations as one."""
        self._num_calls += 1
        pending_futures.await_own()
        shown = [call[2] for call in calls if isinstance(call[2], Tensor)]
        if self._habits.rules is not None:
            self._habits.rules.check(event, shown, result, options)
        order = self._order_for(shown) if registered else None
        if order is not None:
            order.raise_failure()
        ticket = None if order is None else Ticket.draw(order, Effects(event, shown, result), self._lane)
        loans = [] if ticket is None else [Loan(args) for _, *args in calls]
        given = [args for _, *args in calls] if ticket is None else [loan.arguments for loan in loans]
        with self._record(event, shown, result) as recording:
            natives = launch_all(self._group, [
                (call.__name__, functools.partial(call, *args, timeout_s=options.timeout_s, async_op=True))
                for (call, *_), args in zip(calls, given, strict=True)
            ])  # fmt: skip
        combined = CombinedWork(natives)
        self._finish_later(recording, combined)
        if ticket is None:
            return self._keep(combined, result)
        return self._keep_on_device(Outcome(combined, self._habits, loans), result, ticket)

    def _all_reduce_sparse(self, tensors: list[Tensor], options: CallOptions) -> FinishedWork:
        self._num_calls += 1
        pending_futures.await_own()
        if self._habits.rules is not None:
            self._habits.rules.check("all_reduce", tensors, tensors, options)
        with self._record("all_reduce", tensors, tensors) as recording:
            sparse.all_reduce(self._group, tensors, options)
        recording.finish()
        return self._keep_recent(FinishedWork.of(tensors))

    def _finish_later(self, recording: profiling.Recording, work: Work) -> None:
        if not recording.is_open:
            return
        if versions.EVENTS_MAY_END_ELSEWHERE:
            self._event_completer.when_done(work, recording.finish)
        else:
            recording.finish()

    def _keep(self, native: Work, result: list[Any]) -> FinishedWork:
        if self._coalescing.works is not None:
            self._coalescing.works.append(native)
        return self._keep_recent(PendingWork(native, result, self._completer))

    def _keep_recent(self, work: FinishedWork) -> FinishedWork:
        if _is_small(work.result()):
            self._recent.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> Any:
        engine = self._others.engine_for(torch.device(device))
        if engine is not None:
            return engine._start_coalescing(device)
        self._coalescing.works, self._coalescing.tickets = [], []  # a block that raised has left its own behind
        return None

    def _end_coalescing(self, device: torch.device) -> Any:
        engine = self._others.engine_for(torch.device(device))
        if engine is not None:
            return engine._end_coalescing(device)
        works, self._coalescing.works = self._coalescing.works, None
        tickets, self._coalescing.tickets = self._coalescing.tickets, []
        if works is None:
            raise UsageError("coalescing has not begun")
        if tickets:
            outcome = Outcome(CombinedWork(works), self._habits)
            return DeviceWork(outcome, [], self._completer, tickets, self._habits)
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
            PhalanxError: One on a device has failed, and the program has not been told.
        """
        try:
            pending_futures.await_all()
            self._others.shutdown()
        finally:
            self._group.close()
            self._completer.stop()
            self._event_completer.stop()
            self._habits.recent.all_are_over()
        if registered:
            self._tell_failure()

    def _tell_failure(self) -> None:
        """Raise what the program does not know yet; beside an exception that it has, log it."""
        for order in registered.values():
            if sys.exc_info()[1] is None:
                order.raise_failure(is_last=True)
            elif (error := order.take_failure()) is not None:
                _log.error("an operation had failed before process group %s ended: %s", self.group_name, error)

    def abort(self) -> None:
        """Break the group: whoever waits in it, here or elsewhere, gets an error at once."""
        self._habits.telling.told()
        self._others.abort()
        try:
            self._group.abort("abort() was called on the process group")
        except ClosedError:
            return
        self._completer.stop()
        self._event_completer.stop()
        self._habits.recent.all_are_over()

    @property
    def options(self) -> naming.Options:
        """What the group was made with, its timeout above all."""
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
        """The device that this rank is bound to, if phalanx serves it: torch splits the backend of that device then."""
        device: torch.device | None = super().bound_device_id
        return device if device is not None and self._others.is_served(device.type) else None

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        ProcessGroup.bound_device_id.__set__(self, device)

    def make_engines(self) -> None:
        """Make the engines for devices that other backends serve, now instead of on first use. All ranks must."""
        self._others.make_all()

    def engines(self) -> list[Any]:
        """Return the groups that serve other devices of this one."""
        return self._others.engines()

    def _get_backend(self, device: torch.device) -> Any:
        return self._others.backend_for(torch.device(device))


def _is_small(result: list[Any]) -> bool:
    """Tell whether an operation fills one small tensor, and no other."""
    first, *others = result or [None]
    return (
        not others
        and isinstance(first, Tensor)
        and not first.is_sparse
        and first.untyped_storage().nbytes() <= _SMALL_BYTES
    )

"""The life of one asynchronous operation on a device that has streams.

docs/internals/torch-backend.md has a picture of the states, and says which thread moves an operation to which state.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, cast

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from phalanx.collectives import Timeout, Work
from phalanx.errors import ClosedError, PhalanxError
from phalanx.groups.stream_order import StreamOrder
from phalanx.torch_backend.rules import Rules

_ONLY_READ = {"send"}
_ONLY_WRITE = {"recv", "recvAnySource"}


class State(enum.Enum):
    """How far an operation has come."""

    QUEUED = "queued"  # behind the current stream; the engine does not know it yet
    RUNNING = "running"  # the engine has it
    DONE = "done"
    FAILED = "failed"


class GroupErrors:
    """The errors of one group's operations: in which form they are raised, and which were reported to the program.

    A group reports only its first failure. Operations that were under way at that time usually fail because of it, so
    their failures count as reported too.

    Attributes:
        rules: Give errors the form that another backend's users expect.
    """

    rules: Rules | None = None

    def __init__(self) -> None:
        self._num_started = 0
        self._num_reported = 0  # operations up to this number need not be reported

    def next_number(self) -> int:
        """Return the number of an operation that starts."""
        self._num_started += 1
        return self._num_started

    def is_reported(self, number: int) -> bool:
        """Tell whether the program has got an error since the operation with this number started."""
        return number <= self._num_reported

    def report(self) -> None:
        """Note that the program gets an exception."""
        self._num_reported = self._num_started

    def translated(self, error: PhalanxError) -> PhalanxError:
        """Return the error as this group raises it."""
        return error if self.rules is None else self.rules.translate(error)

    def raise_reported(self, error: PhalanxError) -> NoReturn:
        """Raise the error, and note that the program has it.

        Raises:
            PhalanxError: Always.
        """
        self.report()
        raise self.translated(error) from error.__cause__


class Operation:
    """One asynchronous operation on tensors of a device; a Work. Threads may share it.

    Synchronizing a device is a way to wait for its operations, so a failure that nobody waited for is found there.
    """

    def __init__(self, order: StreamOrder, position: object, errors: GroupErrors) -> None:
        """Make a queued operation.

        Args:
            order: The order of its device's streams.
            position: Where it stands in that order.
            errors: The errors of its group.
        """
        self.order = order
        self.state = State.QUEUED
        self._position = position
        self._errors = errors
        self._number = errors.next_number()
        self._work: Work | None = None
        self._error: PhalanxError | None = None
        self._source: int | None = None
        self._tensors: list[Tensor] = []

    def start(self, call: Callable[..., Work], arguments: Sequence[Any], timeout_s: float | None) -> Work:
        """Hand it to the engine; return the engine's Work.

        The engine holds tensors until its next operation. Device memory is scarce, so the engine gets detached tensors,
        which finish() empties.

        Raises:
            PhalanxError: The engine refuses it.
        """
        work = self._work = call(*self._detached(arguments), timeout_s=timeout_s, async_op=True)
        self.state = State.RUNNING
        return work

    def _detached(self, arguments: Sequence[Any]) -> list[Any]:
        detached: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                self._tensors.append(argument.detach())
                detached.append(self._tensors[-1])
            else:
                detached.append(self._detached(argument) if isinstance(argument, (list, tuple)) else argument)
        return detached

    def wait(self, timeout_s: Timeout = None) -> None:
        """Block until it is done.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        work = self._work
        if work is not None:
            try:
                work.wait(timeout_s)
            except PhalanxError as error:
                if not work.done() or work.exception() is None:  # only this wait timed out; the operation goes on
                    self._errors.raise_reported(error)
            self._end(work)
        if self._error is not None:
            self._errors.raise_reported(self._error)

    def finish(self) -> None:
        """Block until it has ended, with or without an error; unreported() returns why it failed."""
        work = self._work
        if work is not None:
            with contextlib.suppress(PhalanxError):
                work.wait()
            self._end(work)

    def _end(self, work: Work) -> None:
        """Note how it ended. Two threads may call this at once."""
        self._error = cast("PhalanxError | None", work.exception())
        self._source = getattr(work, "source_rank", lambda: None)()
        self.state = State.DONE if self._error is None else State.FAILED
        self._work = None
        tensors, self._tensors = self._tensors, []
        if tensors:
            with _disable_current_modes():  # such as FakeTensorMode, which refuses to mix real tensors with its own
                for tensor in tensors:
                    tensor.data = tensor.new_empty(0)

    def order_stream(self) -> None:
        """Let the current stream continue after the operation, which has ended."""
        if self._position is not None:
            self.order.wait(self._position)

    def done(self) -> bool:
        """Tell whether it has ended, with or without an error."""
        work = self._work
        return self.state is not State.QUEUED if work is None else work.done()

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or if it succeeded. The failure then counts as reported."""
        error = self._failure()
        if error is None:
            return None
        self.report()
        return self._errors.translated(error)

    def unreported(self) -> BaseException | None:
        """Return why it failed, if the program has got no error of the group since it started. Does not wait."""
        error = None if self._errors.is_reported(self._number) else self._failure()
        if error is None or isinstance(error, ClosedError):  # closed by this rank itself
            return None
        return self._errors.translated(error)

    def report(self) -> None:
        """Note that the program gets the error."""
        self._errors.report()

    def result(self) -> Any:
        """Wait, and return nothing: DeviceWork has the tensors.

        Raises:
            PhalanxError: It failed.
        """
        self.wait()

    def source_rank(self) -> int | None:
        """Return which rank a receive got its message from; None for anything else, or before that."""
        ask = getattr(self._work, "source_rank", None)
        return self._source if ask is None else ask()

    def _failure(self) -> PhalanxError | None:
        work = self._work
        if work is None:
            return self._error
        return cast("PhalanxError | None", work.exception()) if work.done() else None


def enter_stream(
    order: StreamOrder, event: str, shown: Sequence[Tensor], result: list[Any], *, is_root: bool, group_number: int
) -> object:
    """Let an operation run after the work on the current stream; return its position, or None if it needs none.

    Args:
        order: The order of its device's streams.
        event: The profiler's name of the operation.
        shown: The tensors that it reads; if it works in place, the tensors that it changes.
        result: The tensors that it fills, or lists of them.
        is_root: Whether this rank is its root.
        group_number: A number for the group.
    """
    if not order.runs_at_once:  # the engine itself lets it run after the current stream
        return None
    is_source_only = event in _ONLY_READ or (event == "broadcast" and is_root) or (event == "reduce" and not is_root)
    is_target_only = event in _ONLY_WRITE or (event in ("broadcast", "scatter") and not is_root)
    reads = [] if is_target_only else list(shown)
    writes = [] if is_source_only else list(flat(result))
    return order.launch(reads, writes, operation=event, group_number=group_number) if reads or writes else None


def flat(nested: Any) -> Iterator[Tensor]:
    """Yield all tensors of a list that may hold lists."""
    for item in nested:
        if isinstance(item, Tensor):
            yield item
        else:
            yield from flat(item)

"""Inject faults: let a rank die, hang, raise, be late or send wrong bits, at the operation that you name.

    @pytest.mark.ranks(4)
    def test_training_goes_on_without_rank_1(group):
        faults.kill(rank=1, at=3)
        train(group)

Every rank makes the same call, and the fault takes effect on the rank that it names. `at=3` is that rank's third
operation from here on, `at="all_reduce"` is its next all_reduce, and `at=("broadcast", 2)` is its second broadcast.
Operations of all phalanx groups count, including those behind torch.distributed; operations of Gloo or NCCL do not. A
rank that a fault killed or stalled does not fail the test: the other ranks decide whether it passes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from phalanx.errors import UsageError
from phalanx.groups.open_groups import open_groups
from phalanx.launch.context import LaunchContext, current_context

OPERATIONS = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_single",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "send",
    "recv",
)
_OUTPUTS_FIRST = (
    "all_gather",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
)
At = int | str | tuple[str, int]


class RankLost(BaseException):
    """End a rank that is a thread, instead of killing a process. It is no Exception, so that tests do not catch it."""


def kill(*, rank: int, at: At, signal_number: int = signal.SIGKILL) -> None:
    """Kill a rank right before an operation.

    Raises:
        UsageError: There is no such rank or operation.
    """
    _arm(rank, at, lambda context, name, args: _kill(context, signal_number))


def stall(*, rank: int, at: At, seconds: float | None = None) -> None:
    """Let a rank hang before an operation, forever or for some seconds. Its process stays alive.

    Raises:
        UsageError: There is no such rank or operation.
    """
    _check_seconds(seconds)
    _arm(rank, at, lambda context, name, args: _stall(context) if seconds is None else time.sleep(seconds))


def delay(*, rank: int, at: At, seconds: float) -> None:
    """Let a rank be late for an operation.

    Raises:
        UsageError: There is no such rank or operation.
    """
    _check_seconds(seconds)
    _arm(rank, at, lambda context, name, args: time.sleep(seconds))


def raise_(error: BaseException | type[BaseException], *, rank: int, at: At) -> None:
    """Raise an exception from an operation instead of running it.

    Raises:
        UsageError: There is no such rank or operation.
    """
    if not (isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))):
        raise UsageError(f"faults.raise_: give an exception, not {error!r}")

    def throw(*_: Any) -> NoReturn:
        raise error

    _arm(rank, at, throw)


def corrupt(*, rank: int, at: At, bit: int = 0) -> None:
    """Flip one bit of the first element of a rank's input to an operation.

    Raises:
        UsageError: There is no such rank or operation.
    """
    if bit < 0:
        raise UsageError(f"faults.corrupt: bit is {bit}; count from 0")
    _arm(rank, at, lambda context, name, args: _flip(name, args, bit))


class _Fault:
    """A fault that waits for its operation. The rank calls it before every operation."""

    def __init__(self, context: LaunchContext, operation: str | None, number: int, strike: Callable[..., Any]) -> None:
        self._context = context
        self._operation = operation
        self._left = number
        self._strike = strike
        self._next = context.interceptor
        self._lock = threading.Lock()  # guards the count: threads of a rank may call at the same time
        self._at = f"{operation or 'operation'} {number}"

    def describe_unstruck(self) -> list[str]:
        """Name the operations of faults that have not taken effect: of this one and of earlier ones."""
        before = self._next.describe_unstruck() if isinstance(self._next, _Fault) else []
        return [*before, self._at] if self._left > 0 else before

    def __call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._next is not None:
            self._next(name, args, kwargs)
        if self._operation is not None and name != self._operation:
            return
        with self._lock:
            self._left -= 1
            is_now = self._left == 0
        if is_now:
            self._strike(self._context, name, (*args, *kwargs.values()))


def _arm(rank: int, at: At, strike: Callable[..., Any]) -> None:
    context = current_context()
    if context is None:
        raise UsageError("faults work only on ranks: call them inside a test marked with @pytest.mark.ranks")
    operation, number = _read_at(at)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < context.size:
        raise UsageError(f"faults: rank {rank!r} is outside this world of {context.size}; give 0 to {context.size - 1}")
    if "engine" in context.own:
        raise UsageError(
            f"faults work only in phalanx's own groups; this test's group uses {context.own['engine']}, where they "
            f"have no effect"
        )
    if rank != context.rank:
        return
    context.interceptor = _Fault(context, operation, number, strike)
    for group in open_groups():
        group._set_interceptor(context.interceptor)


def _read_at(at: At) -> tuple[str | None, int]:
    operation: Any
    operation, number = at if isinstance(at, tuple) and len(at) == 2 else (at, 1)
    if isinstance(at, int):
        operation, number = None, at
    if operation is not None and operation not in OPERATIONS:
        raise UsageError(f"faults: there is no operation {operation!r}; give one of {', '.join(OPERATIONS)}")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(f"faults: at={at!r} is no operation; give a number from 1 on, a name, or (name, number)")
    return operation, number


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise UsageError(f"faults: {seconds!r} seconds are not possible; give a positive number")


def _kill(context: LaunchContext, number: int) -> None:
    if context.tell is not None:
        context.tell("lost")
    if context.is_thread:
        raise RankLost(number)
    os.kill(os.getpid(), number)
    time.sleep(60)  # a signal that can be caught may take a moment


def _stall(context: LaunchContext) -> NoReturn:
    if context.tell is not None:
        context.tell("stalled")
    while True:
        time.sleep(0.02)  # in slices: a thread can only be stopped between them


def _flip(name: str, args: Sequence[Any], bit: int) -> None:
    import torch

    tensors = [tensor for value in args for tensor in (value if isinstance(value, (list, tuple)) else [value])]
    tensors = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.numel()]
    if not tensors:
        raise UsageError(f"faults.corrupt: {name} has no input tensor to corrupt")
    # These operations take their outputs first, and their inputs last.
    given = tensors[-1] if name in _OUTPUTS_FIRST else tensors[0]
    first = given.detach()[(0,) * given.dim()]  # a view, whatever the strides are
    raw = first.clone().reshape(1).view(torch.uint8)
    raw[bit // 8 % raw.numel()] ^= 1 << bit % 8
    first.copy_(raw.view(given.dtype)[0])


def unstruck(context: LaunchContext) -> list[str]:
    """Name the operations of a rank's faults that have not taken effect."""
    return context.interceptor.describe_unstruck() if isinstance(context.interceptor, _Fault) else []

"""Launch several calls together: record them inside a `with` block, and run them when it ends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from phalanx.collectives import ReduceOp, Timeout, Work, as_reduce_op
from phalanx.engine import RankEndpoint
from phalanx.errors import PhalanxError, UsageError


class RecordedCall:
    """What a call inside the block returns: there is no Work yet."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"Illegal to call {name} on an operation inside a coalescing block; wait for the block itself")


class CombinedWork:
    """One Work for several operations."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for all operations.

        Raises:
            PhalanxError: One of them failed.
        """
        for work in self._works:
            work.wait(timeout_s)

    def done(self) -> bool:
        """Tell whether all operations have ended."""
        return all(work.done() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first exception of an operation, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """Wait, then return every operation's result."""
        return [work.result() for work in self._works]


def launch_all(refuse: Callable[[str, str], object], calls: Sequence[tuple[str, Callable[[], Work]]]) -> list[Work]:
    """Launch several operations of a group, which refuses them by `refuse`; each is given with its method's name.

    If one of them is refused, refuse the later ones too, because peers that launch all of them would wait.

    Raises:
        PhalanxError: An operation was refused.
    """
    works: list[Work] = []
    for number, (name, call) in enumerate(calls):
        try:
            works.append(call())
        except Exception:
            for later, _ in calls[number + 1 :]:
                with contextlib.suppress(PhalanxError):  # the group is broken or closed: peers know
                    refuse(_operation_of(later), f"an operation before it, {name}, was refused")
            raise
    return works


def _operation_of(method: str) -> str:
    return method.removesuffix("_single").removesuffix("_coalesced")


class Coalescing:
    """A coalescing block; it is also the Work of the operations that it launched."""

    def __init__(self, group: RankEndpoint, async_op: bool) -> None:
        self._group = group
        self._async_op = async_op
        self._calls: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = []
        self._work: Work | None = None

    def __enter__(self) -> Coalescing:
        self._group._set_recorder(self._record)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._group._set_recorder(None)
        if kind is not None or not self._calls:
            return
        names = {name for name, _, _ in self._calls}
        if len(names) > 1:
            message = f"a coalescing block requires all collectives to be the same type, not {sorted(names)}"
            raise self._group.refuse(_operation_of(self._calls[0][0]), message)
        self._work = self._launch()
        if not self._async_op:
            self._work.wait()

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for all operations of the block.

        Raises:
            UsageError: The block has not ended.
            PhalanxError: One of the operations failed.
        """
        if self._calls and self._work is None:
            raise UsageError("you can wait for a coalescing block only after its end")
        if self._work is not None:
            self._work.wait(timeout_s)

    def _record(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RecordedCall:
        self._calls.append((name, args, kwargs))
        return RecordedCall()

    def _launch(self) -> Work:
        launches: list[tuple[str, Callable[[], Work]]] = []
        for (name, op), calls in self._runs():
            if name == "all_reduce":
                tensors = [args[0] if args else kwargs["tensor"] for args, kwargs in calls]
                timeouts = [kwargs["timeout_s"] for _, kwargs in calls if kwargs.get("timeout_s") is not None]
                limit = max(timeouts) if timeouts else None
                reduce_all: Callable[..., Work] = self._group.all_reduce_coalesced  # partial() knows no overloads
                launches.append((name, functools.partial(reduce_all, tensors, op, timeout_s=limit, async_op=True)))
                continue
            method = getattr(self._group, name)
            for args, kwargs in calls:
                launches.append((name, functools.partial(method, *args, **{**kwargs, "async_op": True})))
        works = launch_all(self._group.refuse, launches)
        return works[0] if len(works) == 1 else CombinedWork(works)

    def _runs(self) -> list[tuple[tuple[str, Any], list[tuple[tuple[Any, ...], Mapping[str, Any]]]]]:
        """Collect adjacent calls that can be launched together."""
        runs: list[tuple[tuple[str, Any], list[tuple[tuple[Any, ...], Mapping[str, Any]]]]] = []
        for name, args, kwargs in self._calls:
            op = _reduction_of(args, kwargs) if name == "all_reduce" else None
            if not runs or runs[-1][0] != (name, op):
                runs.append(((name, op), []))
            runs[-1][1].append((args, kwargs))
        return runs


def _reduction_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the reduction of an all_reduce, in one spelling, so that ranks that spell it differently agree."""
    op = args[1] if len(args) > 1 else kwargs.get("op", ReduceOp.SUM)
    try:
        return as_reduce_op(op)
    except UsageError:
        return op  # refused when it is launched, so that peers hear of it

"""Several calls launched as one: recorded inside a `with` block, run when it ends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx.collectives import ReduceOp, Timeout, Work
from phalanx.errors import PhalanxError, UsageError

if TYPE_CHECKING:
    from phalanx.groups.shared_memory import SharedMemoryGroup


class RecordedCall:
    """Stands for a Work inside the block, where there is none yet."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"Illegal to call {name} on an operation inside a coalescing block; wait for the block itself")


class CombinedWork:
    """Several operations as one Work."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for all.

        Raises:
            PhalanxError: One of them failed.
        """
        for work in self._works:
            work.wait(timeout_s)

    def done(self) -> bool:
        """Tell whether all have ended."""
        return all(work.done() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first exception of any."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """Wait, then return every operation's result."""
        return [work.result() for work in self._works]


def launch_all(group: SharedMemoryGroup, calls: Sequence[tuple[str, Callable[[], Work]]]) -> list[Work]:
    """Launch several operations, each given with its method's name.

    When one is refused, so are those after it: peers, who launch them all, would wait for them.

    Raises:
        PhalanxError: One was refused.
    """
    works: list[Work] = []
    for number, (name, call) in enumerate(calls):
        try:
            works.append(call())
        except Exception:
            for later, _ in calls[number + 1 :]:
                with contextlib.suppress(PhalanxError):  # the group is broken or closed: peers know
                    group.refuse(_operation_of(later), f"an operation before it, {name}, was refused")
            raise
    return works


def _operation_of(method: str) -> str:
    return method.removesuffix("_single").removesuffix("_coalesced")


class Coalescing:
    """A coalescing block; also the Work of what it launched."""

    def __init__(self, group: SharedMemoryGroup, async_op: bool) -> None:
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
            told = f"a coalescing block requires all collectives to be the same type, not {sorted(names)}"
            raise self._group.refuse(_operation_of(self._calls[0][0]), told)
        self._work = self._launch()
        if not self._async_op:
            self._work.wait()

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for everything the block launched.

        Raises:
            UsageError: The block has not ended.
            PhalanxError: One of the operations failed.
        """
        if self._calls and self._work is None:
            raise UsageError("a coalescing block can be waited for after its end only")
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
        works = launch_all(self._group, launches)
        return works[0] if len(works) == 1 else CombinedWork(works)

    def _runs(self) -> list[tuple[tuple[str, Any], list[tuple[tuple[Any, ...], Mapping[str, Any]]]]]:
        """Group neighbours that can be launched together."""
        runs: list[tuple[tuple[str, Any], list[tuple[tuple[Any, ...], Mapping[str, Any]]]]] = []
        for name, args, kwargs in self._calls:
            op = args[1] if name == "all_reduce" and len(args) > 1 else kwargs.get("op", ReduceOp.SUM)
            if not runs or runs[-1][0] != (name, op):
                runs.append(((name, op), []))
            runs[-1][1].append((args, kwargs))
        return runs

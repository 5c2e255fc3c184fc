"""What a rank knows about itself: the launcher sets it once, and connect() reads it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from phalanx.launch.rendezvous import NOWHERE, Rendezvous


@dataclass(frozen=True)
class Placement:
    """The place of a rank in its world.

    Attributes:
        rank: Its number.
        size: How many ranks there are.
        meeting: Name under which later groups of its world meet.
        rendezvous: Where torch's own backends meet.
    """

    rank: int
    size: int
    meeting: str
    rendezvous: Rendezvous = NOWHERE

    def context(self, descriptor: int, *, is_thread: bool = False) -> LaunchContext:
        """Make the context in which phalanx.connect() finds the world's memory."""
        return LaunchContext(self.rank, self.size, descriptor, is_thread, self.meeting, self.rendezvous.store)


@dataclass
class LaunchContext:
    """What a rank knows about the world in which it was started.

    Attributes:
        rank: Its number.
        size: How many ranks there are.
        descriptor: The world's segment, attached by the first connect().
        is_thread: Whether ranks are threads of one process.
        meeting: Name under which later groups of this world meet.
        store: Where torch's store is, for its own backends: see phalanx.launch.rendezvous.
        connects: How many groups of the whole world this rank has made so far.
        failure: What its function raised.
        interceptor: Called before every operation of this rank: `interceptor(name, args, kwargs)`.
        tell: Called with the kind of an injected fault, such as "lost", before it takes effect.
        ask_gone: Returns which ranks are dead and which are done; it asks the process that started them.
        started_by: "spawn" or "pytest"; "" for anything else, such as phalanx run.
        is_loading: Whether it is importing the modules from which its function comes.
        own: Data that parts of phalanx keep for this rank, by name.
    """

    rank: int
    size: int
    descriptor: int
    is_thread: bool
    meeting: str
    store: str = ""
    connects: Any = field(default_factory=count)
    failure: BaseException | None = None
    interceptor: Callable[[str, tuple[Any, ...], dict[str, Any]], None] | None = None
    tell: Callable[[str], None] | None = None
    ask_gone: Callable[[], tuple[frozenset[int], frozenset[int]]] | None = None
    started_by: Literal["spawn", "pytest", ""] = ""
    is_loading: bool = False
    own: dict[str, Any] = field(default_factory=dict)


# A rank is a thread or a process: in a process all threads share its context.
_of_thread = threading.local()
_of_process: list[LaunchContext] = []


def set_thread_context(context: LaunchContext | None) -> None:
    """Make the calling thread a rank; with None, it is no rank any more."""
    _of_thread.context = context


def set_process_context(context: LaunchContext) -> None:
    """Make this process a rank."""
    _of_process[:] = [context]


def mark_failed(error: BaseException) -> None:
    """Note that this rank's function raised, so that peers do not take its end for a regular one.

    The exception is kept, and with it the frames that hold the rank's groups.
    """
    for context in _of_process:
        context.failure = error


_listeners: list[Callable[[str], None]] = []


def on_failure(tell: Callable[[str], None]) -> None:
    """Register a function for all ranks of this process. It is called with the reason when one of them fails."""
    if tell not in _listeners:
        _listeners.append(tell)


def tell_peers(why: str) -> None:
    """Free the peers that wait for this rank, and tell them why it will not come."""
    for tell in _listeners:
        tell(why)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Let this rank know that it loads its function: a module that is imported meanwhile must not start ranks."""
    context = current_context()
    assert context is not None
    context.is_loading = True
    try:
        yield
    finally:
        context.is_loading = False


def has_failed() -> bool:
    """Tell whether this process is a rank whose function raised."""
    return any(context.failure is not None for context in _of_process)


def part_of_rank() -> str:
    """Say what the ranks of this job run, for errors."""
    context = current_context()
    return {"spawn": "its function", "pytest": "the test", "": "its program"}[context.started_by if context else ""]


def current_thread_rank() -> LaunchContext | None:
    """Return the context of the calling thread if this thread is a rank; None if the process is a rank or no rank."""
    context: LaunchContext | None = getattr(_of_thread, "context", None)
    return context if context is not None and context.is_thread else None


def current_context() -> LaunchContext | None:
    """Return the context of the calling thread, else of the process."""
    context: LaunchContext | None = getattr(_of_thread, "context", None)
    if context is None and _of_process:
        context = _of_process[0]
    return context

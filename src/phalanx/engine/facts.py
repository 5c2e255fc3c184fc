"""The facts that the engine reports about a group, as typed records without any wording.

The native code makes these objects (native/python/facts.cpp), and checks that both sides name the same fields in the
same order. They are tuples because `phalanx run` makes some for every rank, four times a second. Where there is no rank
to name, its number is -1.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

FaultKind: TypeAlias = Literal[
    "none",
    "mismatch",
    "timeout",
    "peer_died",
    "peer_left",
    "peer_failed",
    "aborted",
    "interrupted",
    "out_of_memory",
    "deadlock",
    "unknown",
]
SEVERAL = -1  # threads
FAR = (
    -16
)  # a rank of another host is FAR minus its number in the whole group: see far_number() in native/core/far_peer.hpp
Awaited: TypeAlias = Literal["ranks", "stream", "work", "unknown"]
Device: TypeAlias = Literal["cpu", "cuda"]


def far_rank(number: int) -> int | None:
    """Return the number in the whole group of a rank on another host; None if the rank is not on another host."""
    return FAR - number if number <= FAR else None


class EntryFacts(NamedTuple):
    """An operation, as the journal of a rank has it.

    Attributes:
        seq: Its number; messages are counted by themselves.
        operation: Its name, such as "all_reduce", "send" or "recv".
        dtype: Of its tensors, as torch names it.
        device: Of its tensors.
        op: How it reduces.
        root: The root, or the peer that a message is for or awaited from; FAR or less if that is on another host.
        peer: The other side of a message that has ended; also FAR or less.
        count: Elements of each rank; of a message its tag.
        size_bytes: Of the tensor.
        location: File and line of the call; empty when unknown.
        is_async: Whether the caller went on meanwhile.
        start_ns: When it began, on the monotonic clock.
        end_ns: When it ended; 0 when it has not.
        shape: Of the tensor.
        seconds_ago: How long ago it began.
        may_do_more: Whether it has a short timeout, after which the caller may have something else to do.
    """

    seq: int
    operation: str
    dtype: str
    device: Device
    op: str
    root: int
    peer: int
    count: int  # type: ignore[assignment]  # tuples have a method of that name
    size_bytes: int
    location: str
    is_async: bool
    start_ns: int
    end_ns: int
    shape: tuple[int, ...]
    seconds_ago: float = 0.0
    may_do_more: bool = False

    @property
    def is_message(self) -> bool:
        """Whether it is no collective."""
        return self.operation in ("send", "recv")

    @property
    def is_rooted(self) -> bool:
        """Whether one rank has another part in it than the others."""
        return self.operation in ("broadcast", "reduce", "gather", "scatter")


Departure = Literal["", "closed", "dropped", "ended", "unknown"]


class RankFacts(NamedTuple):
    """A rank of a group: whether it lives, what it called last, what it waits for.

    Attributes:
        rank: Its number.
        pid: Its process; 0 before it has joined.
        launched_pid: The process that was started to become it; 0 without a launcher of ours.
        thread: That made its group, as the kernel counts.
        is_thread: Whether ranks of this group are threads of one process.
        is_here: Whether its process has the same number here as there: it is not in another container.
        is_debugged: It stands at a breakpoint.
        state: Whether it has joined or left, or has died.
        exit_status: Exit code, or 256 + signal, of a rank that died; -1 when unknown.
        arrived: The last collective that it came to.
        finished: The last collective that it has left.
        sleeps_for: The rank it sleeps for in a collective; stays when the group breaks.
        entry: The collective that it arrived at last.
        begun: A collective that it has called, but not come to yet.
        mail: What it sleeps for in send or recv.
        messages: How many it has begun.
        moved_bytes: What its operations carried.
        caller: The thread that calls its operations, as the kernel counts; SEVERAL if there are more, 0 if none.
        backward_caller: The same of the threads in which torch runs the backward pass.
        awaits_work: Whether one of these threads waits for asynchronous collectives.
        other_threads: What its process runs in further Python threads, which may call an operation: code of
            libraries or of the program.
        looks: How often a thread that sleeps in a collective has looked in vain.
        work_looks: How often a caller that waits for asynchronous collectives has.
        mail_moves: A count that grows whenever it moves a part of a message.
        mail_looks: How often a thread that sleeps for a message has looked in vain.
        background_looks: The same of the thread that moves asynchronous messages.
        background_mail: How many of those are under way.
        departure: Why it has left: it closed the group, dropped its last reference to it, or its program ended.
    """

    rank: int
    pid: int
    launched_pid: int
    thread: int
    is_thread: bool
    is_here: bool
    is_debugged: bool
    state: Literal["absent", "present", "left", "dead", "unknown"]
    exit_status: int
    arrived: int
    finished: int
    sleeps_for: int
    entry: EntryFacts | None
    begun: EntryFacts | None
    mail: EntryFacts | None
    messages: int = 0
    moved_bytes: int = 0
    caller: int = 0
    backward_caller: int = 0
    awaits_work: bool = False
    other_threads: Literal["unknown", "none", "libraries", "program"] = "unknown"
    looks: int = 0
    work_looks: int = 0
    mail_moves: int = 0
    mail_looks: int = 0
    background_looks: int = 0
    background_mail: int = 0
    departure: Departure = ""

    @property
    def any_pid(self) -> int:
        """Its process, also before it has joined; 0 when nobody knows it."""
        return self.pid or self.launched_pid

    @property
    def collective(self) -> EntryFacts | None:
        """The collective that it is in."""
        return self.entry if self.entry is not None and self.finished < self.entry.seq else None


class RankRecords(NamedTuple):
    """The last operations and messages of a rank, oldest first."""

    operations: list[EntryFacts]
    messages: list[EntryFacts]


class FaultFacts(NamedTuple):
    """Why a group is broken.

    Attributes:
        kind: What happened.
        culprit: The rank because of which.
        reporter: The rank that noticed; -1 when it was the launcher.
        seq: The collective in which it noticed; 0 when in none.
        text: What a program or a library said.
        awaited: What the reporter of a timeout waited for: its peers, the stream of a GPU, or a Work.
        wanted_bytes: Where sizes do not fit: how many the reporter expects, or how much memory is needed.
        found_bytes: How many the culprit has given, or how much memory there is.
    """

    kind: FaultKind
    culprit: int
    reporter: int
    seq: int
    text: str
    awaited: Awaited = "ranks"
    wanted_bytes: int = 0
    found_bytes: int = 0


class Trouble(NamedTuple):
    """Why a call of this rank could not be finished.

    Attributes:
        kind: A fault's kind; or "usage", "closed" or "forked", of a call that was never made.
        operation: What was called.
        seq: Its number; 0 of a message.
        culprit: As in FaultFacts, like the next five.
        reporter: Who noticed.
        fault_seq: The collective in which it noticed, which may be another than this one.
        text: What a program or a library said.
        awaited: What a timeout waited for.
        wanted_bytes: The size that was expected or needed.
        found_bytes: The size that was given or is there.
        is_fatal: Whether the group is broken by it.
        timeout_s: How long the call might take.
        root: The root, or the peer of a message.
        dtype: Of the tensors.
        device: Of the tensors.
        location: File and line of the call.
        tag: Of a message.
        shape: Of the tensor.
    """

    kind: FaultKind | Literal["usage", "closed", "forked"]
    operation: str
    seq: int = 0
    culprit: int = -1
    reporter: int = -1
    fault_seq: int = 0
    text: str = ""
    awaited: Awaited = "ranks"
    wanted_bytes: int = 0
    found_bytes: int = 0
    is_fatal: bool = False
    timeout_s: float = 0.0
    root: int = -1
    dtype: str = ""
    device: Device = "cpu"
    location: str = ""
    tag: int = 0
    shape: tuple[int, ...] = ()

    @property
    def is_message(self) -> bool:
        """Whether the call was no collective."""
        return self.operation in ("send", "recv")

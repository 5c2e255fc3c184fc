"""The calls of all ranks on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.errors import UsageError
from phalanx.timeline.calls import Call
from phalanx.timeline.raw_file import RawFile, RawGroup, read_raw_file

NO_GROUP = "A rank records from its first group of phalanx on, and no rank has made one"


@dataclass(slots=True, eq=False)
class TracedGroup:
    """A group of ranks.

    Attributes:
        label: Its name; with a number where several groups have that name.
        num_ranks: Its size.
        members: World rank of each of its ranks that recorded anything.
    """

    label: str
    num_ranks: int
    members: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Span:
    """One call of one rank.

    Attributes:
        rank: World rank.
        group: The group of the call.
        group_rank: The caller's rank in the group.
        number: Running number of the operation in its group.
        start_ns: Since the first call of all.
        end_ns: Since the first call of all. If the call never returned, the end of the recording.
        call: The operation and its arguments.
        place: Source line, or "".
        peer: Rank in the group at the other end of a message; -1 if there is none or it is unknown.
        is_finished: Whether the call returned.
        waited_ns: How long it waited, from its start, for a rank that had not made its call.
        waited_for: World rank that it waited for longest, or None.
        event: A number that all spans of one collective, or of one message, have in common.
    """

    rank: int
    group: TracedGroup
    group_rank: int
    number: int
    start_ns: int
    end_ns: int
    call: Call
    place: str
    peer: int
    is_finished: bool
    waited_ns: int = 0
    waited_for: int | None = None
    event: int = -1

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Process:
    """A process that recorded as this rank; it has one file."""

    rank: int
    pid: int
    host: str
    file_name: str
    is_truncated: bool
    is_cut: bool
    is_empty: bool


@dataclass(slots=True)
class Timeline:
    """What all ranks did.

    Attributes:
        processes: The processes that recorded, in rank order.
        groups: In the order in which they were first seen.
        spans: By rank, then by start.
        start_unix_ns: When the first call started, as a Unix time.
        duration_ns: From the first start to the last end.
        clocks_differ: Whether the files come from machines or boots whose times can't be compared.
    """

    processes: list[Process]
    groups: list[TracedGroup]
    spans: list[Span]
    start_unix_ns: int
    duration_ns: int
    clocks_differ: bool = False

    @property
    def ranks(self) -> list[int]:
        """All world ranks, in order."""
        members = {rank for group in self.groups for rank in group.members.values()}
        return sorted(members | {process.rank for process in self.processes})


def read_spans(folder: Path, *, may_be_empty: bool = False) -> Timeline:
    """Join the raw files of a folder.

    Raises:
        UsageError: There are none, and `may_be_empty` is false; or one is damaged.
    """
    paths = sorted(folder.glob("rank-*.raw"))
    if not paths and not may_be_empty:
        raise UsageError(f"{folder} holds no recording (rank-*.raw): {_why_empty(folder)}")
    return join([read_raw_file(path) for path in paths])


def _why_empty(folder: Path) -> str:
    if (folder / "timeline.html").exists():
        return (
            "it has a page, but the files that the page was made from are gone"
            "\n  do       open timeline.html, or record the program again"
        )
    reason = "it is empty, so no rank made a group of phalanx or called an operation of one"
    if any(folder.iterdir()):
        reason = f"it has only other files. {NO_GROUP}"
    return (
        f"{reason}\n"
        '  do       make a group in the program, with phalanx.connect() or init_process_group("phalanx"); to record a '
        "program that asks for NCCL, Gloo or MPI, let phalanx stand in for it (phalanx run --stand-in nccl)"
    )


def join(files: Sequence[RawFile]) -> Timeline:
    """Put the recordings of several processes on one clock."""
    ranks = _number_ranks(files)
    ordered = sorted(zip(files, ranks, strict=True), key=lambda pair: (pair[1], pair[0].header.pid))
    groups = _join_groups(ordered)
    first_ns = min((span.start_ns for raw in files for span in raw.spans), default=0)
    last_ns = max((max(span.start_ns, span.end_ns) for raw in files for span in raw.spans), default=first_ns)
    spans: list[Span] = []
    for raw, rank in ordered:
        spans += _spans_of(raw, rank, groups, first_ns, last_ns)
    spans.sort(key=lambda span: (span.rank, span.start_ns, -span.end_ns))
    offsets = [raw.header.unix_minus_monotonic_ns for raw in files if not raw.is_empty] or [0]
    hosts = {raw.header.host for raw in files if not raw.is_empty}
    return Timeline(
        processes=[_process(raw, rank) for raw, rank in ordered],
        groups=list(groups.values()),
        spans=spans,
        start_unix_ns=first_ns + offsets[0],
        duration_ns=last_ns - first_ns,
        # The offset changes a little while the system clock is being corrected, and a lot with a boot.
        clocks_differ=len(hosts) > 1 or max(offsets) - min(offsets) > 5_000_000_000,
    )


def _process(raw: RawFile, rank: int) -> Process:
    head = raw.header
    return Process(rank, head.pid, head.host, raw.path.name, head.is_truncated, raw.is_cut, raw.is_empty)


def _number_ranks(files: Iterable[RawFile]) -> list[int]:
    """Give every file its world rank; files without one get free numbers, ordered by their rank in a group."""
    files = list(files)
    taken = {raw.header.rank for raw in files}
    free = (number for number in range(len(files)) if number not in taken)

    def order(index: int) -> tuple[int, int]:
        first = next(iter(files[index].groups.values()), None)
        return (first.rank if first is not None else len(files), files[index].header.pid)

    numbers = [raw.header.rank for raw in files]
    for index in sorted((index for index, number in enumerate(numbers) if number < 0), key=order):
        numbers[index] = next(free)
    return numbers


def _world_rank(raw: RawFile, rank: int, group: RawGroup) -> int:
    """Return the world rank of a span: that of its process, or its rank in the group if ranks are threads."""
    has_threads = sum(other.nonce == group.nonce for other in raw.groups.values()) > 1
    return group.rank if has_threads else rank


def _join_groups(ordered: Sequence[tuple[RawFile, int]]) -> dict[bytes, TracedGroup]:
    groups: dict[bytes, TracedGroup] = {}
    num_of_name: dict[str, int] = {}
    for raw, rank in ordered:
        for group in raw.groups.values():
            if group.nonce not in groups:
                name = group.name or "group"
                num = num_of_name[name] = num_of_name.get(name, 0) + 1
                groups[group.nonce] = TracedGroup(name if num == 1 else f"{name} #{num}", group.num_ranks)
            groups[group.nonce].members[group.rank] = _world_rank(raw, rank, group)
    return groups


def _spans_of(raw: RawFile, rank: int, groups: dict[bytes, TracedGroup], first_ns: int, last_ns: int) -> list[Span]:
    callers = {
        index: (groups[group.nonce], group.rank, _world_rank(raw, rank, group)) for index, group in raw.groups.items()
    }
    spans = []
    for span in raw.spans:
        group, group_rank, world_rank = callers[span.group]
        start_ns, end_ns, done = span.start_ns - first_ns, (span.end_ns or last_ns) - first_ns, span.end_ns != 0
        caller = (world_rank, group, group_rank)
        spans.append(Span(*caller, span.number, start_ns, end_ns, span.call, span.place, span.peer, done))
    return spans

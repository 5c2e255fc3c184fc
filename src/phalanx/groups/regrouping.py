"""Meetings of some of a group's ranks, to make another group or a symmetric tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.explain import describe_missing
from phalanx.diagnosis.surroundings import look_around
from phalanx.engine import GroupSegment, count_cores, create_group_segment
from phalanx.errors import MismatchError, PhalanxError, UsageError
from phalanx.launch.exceptions import headline_of
from phalanx.launch.meeting import Gathering, MeetingResult, Memory, meet

if TYPE_CHECKING:
    from phalanx.groups.shared_memory import SharedMemoryGroup

Cards = Sequence[tuple[Any, ...]]
Attached = TypeVar("Attached")


def gathering_of(
    group: SharedMemoryGroup,
    kind: str,
    members: Sequence[int],
    timeout_s: float,
    *,
    create: Callable[[Cards], Memory],
    check: Callable[[Cards], None],
) -> Gathering:
    """Describe a meeting of members of a group; cards begin with the rank and come back in the members' order."""
    positions = {rank: position for position, rank in enumerate(members)}
    was_broken = group.fault() is not None

    def order(cards: Cards) -> Cards:
        check(cards)
        return sorted(cards, key=lambda its_card: positions[its_card[0]])

    def missing(cards: Cards) -> set[int]:
        return set(members) - {its_card[0] for its_card in cards}

    def check_members() -> None:
        if not was_broken:
            _check_fault(group, kind, members)
        _check_alive(group, kind, members)

    return Gathering(
        name=f'{kind} of group "{group.name}"|{group.nonce.hex()}|{group.next_meeting(kind)}',
        is_complete=lambda cards: len(cards) == len(members),
        order=order,
        create=create,
        describe_missing=lambda cards: describe_members(group, missing(cards)),
        timeout_s=timeout_s,
        check=check_members,
        missing=missing,
        rank_of=lambda card: int(card[0]),
    )


def meet_in(
    group: SharedMemoryGroup,
    gathering: Gathering,
    card: tuple[Any, ...],
    attach: Callable[[MeetingResult], Attached],
    detach: Callable[[Attached], None] = lambda attached: None,
) -> Attached:
    """Meet others of a group. Where this process can't, it breaks the group: nobody shall wait for it in vain.

    Raises:
        Exception: As meet().
    """
    try:
        return meet(gathering, card, attach, detach)
    except PhalanxError:
        raise
    except Exception as error:
        group.fail(f'{headline_of(error)} (rank {group.rank} of group "{group.name}")')
        raise


def describe_members(group: SharedMemoryGroup, missing: Iterable[int]) -> str:
    """Say who has not come to a meeting, and what each does instead."""
    rows = group.snapshot()
    return describe_missing(
        Scene(group.name, group.rank, group.size, rows, around=look_around(group.nonce, rows, missing)), missing
    )


def _check_fault(group: SharedMemoryGroup, kind: str, members: Sequence[int]) -> None:
    """Raise when a member has broken the group since the meeting began."""
    fault = group.fault()
    if fault is not None and fault["kind"] == "peer_failed" and fault["culprit"] in members:
        facts = {**fault, "operation": kind, "is_fatal": True, "seq": 0}
        raise explain(facts, Scene(group.name, group.rank, group.size, group.snapshot()))


def _check_alive(group: SharedMemoryGroup, kind: str, members: Sequence[int]) -> None:
    """Raise when a member has died or left, so that nobody waits for it in vain."""
    if not set(group.find_dead()).intersection(members):
        return
    group.find_dead()  # somebody may have left because of a death that was not known a moment ago
    rows = group.snapshot()
    gone = [rows[rank] for rank in members if rows[rank]["state"] in ("dead", "left")]
    row = next((row for row in gone if row["state"] == "dead"), gone[0])
    fault, rank = "peer_died" if row["state"] == "dead" else "peer_left", row["rank"]
    facts = {
        "kind": fault,
        "operation": kind,
        "culprit": rank,
        "reporter": group.rank,
        "text": "",
        "is_fatal": False,
    }
    around = look_around(group.nonce, rows, [rank])
    raise explain(facts, Scene(group.name, group.rank, group.size, rows, around=around))


def create_for(name: str, cards: Cards, *, crowd: int) -> GroupSegment:
    """Create the memory of a group whose members' cards end with their affinities.

    Raises:
        SharedMemoryError: The machine has not got it.
    """
    crowd = max(crowd, len(cards))
    return create_group_segment(name, len(cards), crowd=crowd, cores=count_cores([card[-1] for card in cards], crowd))


def sizes_in(cards: Cards) -> set[int]:
    """Return the sizes that participants of a merge expect."""
    return {card[-2] for card in cards}


def order_merged(cards: Cards) -> list[tuple[Any, ...]]:
    """Put the participants of a merge in order.

    Raises:
        UsageError: They expect different sizes.
    """
    sizes = sorted(sizes_in(cards))
    if sizes != [len(cards)]:
        raise UsageError(
            f"merge: {len(cards)} ranks came and gave the sizes {sizes}; all must give the number of ranks"
        )
    return sorted(cards)


def check_same_request(cards: Cards) -> None:
    """See that all want the same symmetric tensor.

    Raises:
        MismatchError: They do not.
    """
    if len({card[1:] for card in cards}) > 1:
        told = "; ".join(f"rank {rank} wants {dtype} {shape}" for rank, shape, dtype in sorted(cards))
        raise MismatchError(f"empty: ranks disagree on the symmetric tensor: {told}")

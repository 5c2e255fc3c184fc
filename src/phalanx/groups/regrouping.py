"""Meetings of ranks of a group, in which they make another group or a symmetric tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.explain import describe_missing
from phalanx.diagnosis.surroundings import look_around
from phalanx.engine import GroupSegment, RankEndpoint, count_cores, create_group_segment
from phalanx.engine.facts import FaultKind, Trouble
from phalanx.errors import MismatchError, PhalanxError, UsageError
from phalanx.launch.context import part_of_rank
from phalanx.launch.exceptions import headline_of
from phalanx.launch.meeting import Gathering, HasDescriptor, MeetingResult, meet

Cards = Sequence[tuple[Any, ...]]
Attached = TypeVar("Attached")


def gathering_of(
    group: RankEndpoint,
    kind: str,
    number: int,
    members: Sequence[int],
    timeout_s: float,
    *,
    create: Callable[[Cards], HasDescriptor],
    check: Callable[[Cards], None],
) -> Gathering:
    """Describe a meeting of members of a group. Each card begins with a rank; the host sorts them like `members`."""
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
        name=f'{kind} of group "{group.name}"|{group.nonce.hex()}|{number}',
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
    group: RankEndpoint,
    gathering: Gathering,
    card: tuple[Any, ...],
    attach: Callable[[MeetingResult], Attached],
    detach: Callable[[Attached], None] = lambda attached: None,
) -> Attached:
    """Meet other ranks of a group. If this process can't, break the group, so that no rank waits for it.

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


def describe_members(group: RankEndpoint, missing: Iterable[int]) -> str:
    """Say which ranks have not come to a meeting, and what each does instead."""
    rows = group.snapshot()
    return describe_missing(
        Scene(group.name, group.rank, group.size, rows, around=look_around(group.nonce, rows, missing)), missing
    )


def _check_fault(group: RankEndpoint, kind: str, members: Sequence[int]) -> None:
    """Raise if a member has broken the group since the meeting began."""
    fault = group.fault()
    if fault is not None and fault.kind == "peer_failed" and fault.culprit in members:
        facts = Trouble(
            fault.kind, kind, culprit=fault.culprit, reporter=fault.reporter, text=fault.text, is_fatal=True
        )
        raise explain(facts, Scene(group.name, group.rank, group.size, group.snapshot()))


def _check_alive(group: RankEndpoint, kind: str, members: Sequence[int]) -> None:
    """Raise if a member has died or left, so that this rank does not wait for it."""
    if not set(group.find_dead()).intersection(members):
        return
    group.find_dead()  # a rank may have left because of a death that was not known a moment ago
    rows = group.snapshot()
    gone = [rows[rank] for rank in members if rows[rank].state in ("dead", "left")]
    row = next((row for row in gone if row.state == "dead"), gone[0])
    fault: FaultKind = "peer_died" if row.state == "dead" else "peer_left"
    facts = Trouble(fault, kind, culprit=row.rank, reporter=group.rank)
    around = look_around(group.nonce, rows, [row.rank])
    raise explain(facts, Scene(group.name, group.rank, group.size, rows, around=around, part=part_of_rank()))


def create_for(name: str, cards: Cards, *, crowd: int) -> GroupSegment:
    """Create the memory of a group. The last entry of each member's card is its affinity.

    Raises:
        SharedMemoryError: There is not enough memory.
    """
    crowd = max(crowd, len(cards))
    return create_group_segment(name, len(cards), crowd=crowd, cores=count_cores([card[-1] for card in cards], crowd))


def sizes_in(cards: Cards) -> set[int]:
    """Return the sizes that the ranks of a merge expect."""
    return {card[-2] for card in cards}


def order_merged(cards: Cards) -> list[tuple[Any, ...]]:
    """Put the ranks of a merge in order.

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
    """Check that all ranks ask for the same symmetric tensor.

    Raises:
        MismatchError: They ask for different ones.
    """
    if len({card[1:] for card in cards}) > 1:
        requests = "; ".join(f"rank {rank} wants {dtype} {shape}" for rank, shape, dtype in sorted(cards))
        raise MismatchError(f"empty: ranks disagree on the symmetric tensor: {requests}")

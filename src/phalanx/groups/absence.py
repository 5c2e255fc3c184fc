"""Describe the ranks that do not come when a group is made, and what they do instead.

If phalanx has started the ranks, the segment of the world shows this. Otherwise only their numbers are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.diagnosis import Scene, explain, formatting
from phalanx.diagnosis.explain import describe_missing
from phalanx.diagnosis.processes import is_alive
from phalanx.diagnosis.surroundings import look_around
from phalanx.engine import GroupSegment
from phalanx.engine.facts import RankFacts, Trouble
from phalanx.launch.context import current_context


def describe_absent(ranks: Iterable[int]) -> str:
    """Say what these ranks of the world do instead of coming."""
    scene = _world_scene(ranks)
    return f"{formatting.rank_list(ranks)} did not come" if scene is None else describe_missing(scene, ranks)


def check_alive(operation: str, ranks: Sequence[int]) -> None:
    """Raise if one of these ranks of the world has ended, so that this rank does not wait for it.

    Raises:
        PeerDiedError: Its process has ended.
    """
    rows = _world_rows()
    for rank in ranks:
        row = rows[rank] if rank < len(rows) else None
        if row is None or row.is_thread or row.state == "present":
            continue
        if row.state == "dead" or (row.any_pid and not is_alive(row.any_pid)):
            own = current_context()
            facts = Trouble("peer_died", operation, culprit=rank)
            raise explain(facts, Scene("world", own.rank if own is not None else 0, len(rows), rows))


def _world_rows() -> list[RankFacts]:
    context = current_context()
    if context is None:
        return []
    try:
        return GroupSegment.attach(context.descriptor, is_writable=False).snapshot()
    except (OSError, RuntimeError, MemoryError):  # the descriptor is closed: a test's world that is over
        return []


def _world_scene(ranks: Iterable[int]) -> Scene | None:
    context, rows = current_context(), _world_rows()
    if context is None or max(ranks, default=0) >= len(rows):
        return None
    nonce = GroupSegment.attach(context.descriptor, is_writable=False).nonce
    return Scene("world", context.rank, len(rows), rows, around=look_around(nonce, rows, ranks))

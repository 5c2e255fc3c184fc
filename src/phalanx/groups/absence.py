"""Ranks that do not come to make a group: who they are and what they do, as the world their launcher made shows.

Without a launcher of ours nobody knows their processes: then only their numbers are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.diagnosis import Scene, explain, formatting
from phalanx.diagnosis.explain import describe_missing
from phalanx.diagnosis.processes import is_alive
from phalanx.diagnosis.surroundings import look_around
from phalanx.engine import GroupSegment
from phalanx.launch.context import current_context


def describe_absent(ranks: Iterable[int]) -> str:
    """Say of ranks of the world what they do instead of coming."""
    scene = _world_scene(ranks)
    return f"{formatting.rank_list(ranks)} did not come" if scene is None else describe_missing(scene, ranks)


def check_alive(operation: str, ranks: Sequence[int]) -> None:
    """Raise when one of these ranks of the world has ended, so that nobody waits for it in vain.

    Raises:
        PeerDiedError: Its process has ended.
    """
    rows = _world_rows()
    for rank in ranks:
        row = rows[rank] if rank < len(rows) else None
        if row is None or row["is_thread"] or row["state"] == "present":
            continue
        pid = row["pid"] or row["launched_pid"]
        if row["state"] == "dead" or (pid and not is_alive(pid)):
            facts = {"kind": "peer_died", "operation": operation, "culprit": rank, "text": "", "is_fatal": False}
            own = current_context()
            raise explain(facts, Scene("world", own.rank if own is not None else 0, len(rows), rows))


def _world_rows() -> list[dict[str, Any]]:
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

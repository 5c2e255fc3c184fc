"""What a host answers when a rank or a person on another host asks what its ranks do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.engine import GroupSegment

if TYPE_CHECKING:
    from phalanx.diagnosis.views import JobView

_STACKS_S = 0.4  # the rank that asks waits for a second


def answer_question(
    what: Any, groups: Sequence[GroupSegment], running: Sequence[int], job: JobView, first_rank: int
) -> dict[str, Any] | None:
    """Return the answer to a question, as json can write it; None if this phalanx does not understand it.

    Args:
        what: The question: what to observe, and perhaps the only group to look at.
        groups: The groups of the ranks of this host.
        running: The processes of the ranks.
        job: What is known about the job.
        first_rank: The number of the first rank of this host.
    """
    from phalanx.diagnosis.observation import describe  # most jobs are never asked
    from phalanx.diagnosis.plain_data import to_plain  # the same

    if not isinstance(what, dict) or what.get("kind") not in ("rows", "observe"):
        return None
    if what["kind"] == "rows":
        groups = [group for group in groups if group.name == what.get("group")]
    seen = describe(groups, running, job, with_stacks=True, timeout_s=_STACKS_S)
    if what["kind"] == "rows":
        for group in seen.groups:
            group.records.clear()
    return {"first_rank": first_rank, "seen": to_plain(seen)}

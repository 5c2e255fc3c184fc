"""What this launcher answers when a rank or a person on another host asks what the ranks here do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.jobs.rank import JobRank
from phalanx.jobs.watch import JobWatch

if TYPE_CHECKING:
    from phalanx.diagnosis.views import JobView

_STACKS_S = 0.4  # the rank that asks waits for a second


def answer_question(what: Any, ranks: Sequence[JobRank], watch: JobWatch, job: JobView) -> dict[str, Any] | None:
    """Return the answer to a question, as json can write it; None if this phalanx does not understand it.

    Args:
        what: The question: what to observe, and perhaps the only group to look at.
        ranks: The ranks of this host.
        watch: Their groups.
        job: What the launcher says about the job.
    """
    from phalanx.diagnosis.observation import describe
    from phalanx.diagnosis.plain_data import to_plain

    if not isinstance(what, dict) or what.get("kind") not in ("rows", "observe"):
        return None
    watch.look(ranks)
    groups, name = watch.groups_to_describe(), what.get("group")
    if what["kind"] == "rows":
        groups = [group for group in groups if group.name == name]
    running = [rank.pid for rank in ranks if rank.is_running]
    seen = describe(groups, running, job, with_stacks=True, timeout_s=_STACKS_S)
    if what["kind"] == "rows":
        for group in seen.groups:
            group.records.clear()
    return {"first_rank": ranks[0].number, "seen": to_plain(seen)}

"""Which ranks hold up ranks of other hosts, from what the launchers of all hosts of a job have seen.

Pure functions over observations: no waiting, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.diagnosis import formatting
from phalanx.diagnosis.findings import find, place_of
from phalanx.diagnosis.observation import Observation
from phalanx.engine.facts import RankFacts


@dataclass(frozen=True)
class _Member:
    """A rank of a group, on one of the hosts."""

    rank: int
    host: str
    row: RankFacts
    place: str


def summarize_hosts(hosts: Sequence[Observation]) -> list[str]:
    """Say which rank of which host holds up which ranks of other hosts.

    A group that spans hosts has a part of the same name on each of them. If all members on a host have made a call and
    it is not over, they wait for members on other hosts.

    Args:
        hosts: The observations of all hosts.
    """
    parts: dict[str, list[list[_Member]]] = {}
    for seen in hosts:
        for name, members in _parts_of(seen):
            parts.setdefault(name, []).append(members)
    return [line for group in parts.values() if len(group) > 1 for line in _describe(group)]


def _parts_of(seen: Observation) -> list[tuple[str, list[_Member]]]:
    found = find(seen)
    places = {process.pid: place_of(process) for process in seen.processes}
    host = seen.job.host.partition(" of ")[0] or seen.host
    return [
        (
            group.name,
            [
                _Member(found.member(group, row.rank), host, row, places.get(row.any_pid, ""))
                for row in group.rows
                if row.state == "present"
            ],
        )
        for group in seen.groups
        if group.fault is None
    ]


def _describe(group: Sequence[Sequence[_Member]]) -> list[str]:
    members = [member for part in group for member in part]
    latest = max((member.row.arrived for member in members), default=0)
    late = [member for member in members if member.row.arrived < latest]
    waiting = [
        member
        for part in group
        if all(each.row.arrived == latest and each.row.collective is not None for each in part)
        for member in part
    ]
    if not late or not waiting or waiting[0].row.collective is None:
        return []
    who = formatting.rank_list(member.rank for member in waiting)
    what = formatting.operation(waiting[0].row.collective)
    verb = "holds" if len(late) == 1 else "hold"
    lines = [f"{formatting.rank_list(member.rank for member in late)} {verb} up {who}, in {what}"]
    return lines + [f"  rank {member.rank} on {member.host} is at {member.place}" for member in late if member.place]

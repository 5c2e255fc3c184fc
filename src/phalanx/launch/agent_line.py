"""Ask the launchers of all hosts what their ranks do, from a rank whose operation over hosts takes too long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx.diagnosis.findings import place_of
from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.plain_data import from_plain
from phalanx.engine.facts import FaultFacts, RankFacts
from phalanx.launch.rank_server import ask_hosts as ask_launchers


@dataclass(frozen=True)
class HostRows:
    """A group as a host sees it.

    Attributes:
        host: The number of the host.
        rows: The members of the group on that host; their `rank` is their number among these members.
        places: Where they are in their program, such as "train.py:61 in step", by the same numbers, as far as it is
            known.
        fault: Why the group is broken on that host; None if it is not.
        monotonic_ns: The clock of that host when it answered, for the times in `rows`.
    """

    host: int
    rows: list[RankFacts]
    places: dict[int, str] = field(default_factory=dict)
    fault: FaultFacts | None = None
    monotonic_ns: int = 0


def ask_hosts(group: str, timeout_s: float = 1.0) -> list[HostRows]:
    """Return what the members of a group do on every host that answers in time; [] if there is nobody to ask.

    It raises nothing, because its caller has a worse error to report.

    Args:
        group: The name in the group's segment. If a host has several groups of this name, each gets an entry.
        timeout_s: How long to wait for the answers.
    """
    found: list[HostRows] = []
    for host, answer in ask_launchers({"kind": "rows", "group": group}, timeout_s):
        try:
            found += _read(host, answer)
        except (ValueError, TypeError, KeyError):  # of another version of phalanx
            continue
    return found


def _read(host: int, answer: object) -> Iterable[HostRows]:
    if not isinstance(answer, dict):
        return
    seen = from_plain(Observation, answer["seen"])
    places = {process.pid: place_of(process) for process in seen.processes}
    for group in seen.groups:
        known = {row.rank: places.get(row.any_pid, "") for row in group.rows}
        found = {rank: place for rank, place in known.items() if place}
        yield HostRows(host, group.rows, found, group.fault, seen.monotonic_ns)

"""Measure all contenders in turns: time of the slowest rank, and the bytes that each host sends."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx_tools.bench.cases import ITEM_BYTES, Case
from phalanx_tools.bench.hosts.starting import start_team
from phalanx_tools.bench.teams import Team
from phalanx_tools.hosts.bed import Bed, hosts

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "send_recv_far")
TRAINING = ("ddp_step", "fsdp_step")
_OF_TORCH = ("phalanx_torch", "gloo")
_MOST_ITERATIONS = 2000


@dataclass(frozen=True)
class Network:
    """The bed to measure on."""

    num_hosts: int
    ranks_per_host: int
    rate: str
    delay_us: float


@dataclass(frozen=True)
class Row:
    """What one contender needs for one operation.

    Attributes:
        median_s: Of the turns; each is the time of the slowest rank.
        sent_bytes: What the host sends that sends most, for one operation; the median of the turns.
        least_bytes: What some host must send at least, without any headers; 0 if that is not known.
        is_correct: Whether every rank got the right result.
    """

    operation: str
    bytes: int
    contender: str
    median_s: float
    fastest_s: float
    slowest_s: float
    sent_bytes: float
    least_bytes: float
    is_correct: bool

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)


def list_cases(operations: Sequence[str], sizes: Sequence[int], num_ranks: int) -> list[Case]:
    """Return the cases in the order of the table. A barrier and a training step have no size."""
    has_no_size = ("barrier", *TRAINING)
    return [
        Case(operation, num_ranks, size)
        for operation in operations
        for size in ((0,) if operation in has_no_size else sizes)
    ]


def least_bytes(case: Case, num_hosts: int) -> float:
    """Return what a host must send in an operation, from the literature's lower bounds for large tensors."""
    count = max(case.bytes // ITEM_BYTES, 1)
    part = max(count // case.ranks, 1)
    others = (num_hosts - 1) / num_hosts
    elements = {
        "all_reduce": 2 * count * others,
        "all_gather": part * case.ranks / num_hosts * (num_hosts - 1),
        "reduce_scatter": part * case.ranks * others,
        "broadcast": count,
        "all_to_all": part * case.ranks / num_hosts * others * case.ranks,
        "send_recv_far": count * case.ranks / num_hosts,
    }
    return elements.get(case.operation, 0.0) * ITEM_BYTES


def measure(
    network: Network,
    cases: Sequence[Case],
    contenders: Sequence[str],
    rounds: int,
    turn_s: float,
    *,
    on_case: Callable[[Case], None] = lambda _: None,
    on_absent: Callable[[str, str], None] = lambda *_: None,
    versions: dict[str, str],
) -> list[Row]:
    """Measure all cases with all contenders that can be started.

    Args:
        network: The hosts and their links.
        cases: What to measure.
        contenders: Who takes part.
        rounds: How many turns each contender has.
        turn_s: How long a turn takes.
        on_case: Called before each case.
        on_absent: Called with name and reason when a contender can't take part.
        versions: Filled with the contenders' versions.
    """
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-")))
        bed = stack.enter_context(hosts(network.num_hosts, rate=network.rate, delay_us=network.delay_us))
        teams = []
        for name in contenders:
            try:
                teams.append(stack.enter_context(start_team(name, bed, network.ranks_per_host, folder)))
                versions[name] = teams[-1].version
            except OSError as error:
                on_absent(name, str(error))
        for case in cases:
            on_case(case)
            rows += _measure_case(case, [team for team in teams if _takes_part(team, case)], bed, rounds, turn_s)
    return rows


def _takes_part(team: Team, case: Case) -> bool:
    return case.operation not in TRAINING or team.contender in _OF_TORCH


def _measure_case(case: Case, teams: Sequence[Team], bed: Bed, rounds: int, turn_s: float) -> list[Row]:
    correct = {team.contender: team.prepare(case) for team in teams}
    iterations = {team.contender: _calibrate(team, turn_s) for team in teams}
    times: dict[str, list[float]] = {team.contender: [] for team in teams}
    sent: dict[str, list[float]] = {team.contender: [] for team in teams}
    for turn in range(rounds):
        # The order changes, so that nobody always runs after the same neighbour.
        shift = turn % max(len(teams), 1)
        for team in [*teams[shift:], *teams[:shift]]:
            count = iterations[team.contender]
            before = [host.bytes_sent() for host in bed]
            times[team.contender].append(team.time(count) / count)
            sent[team.contender].append(max(host.bytes_sent() - b for host, b in zip(bed, before, strict=True)) / count)
    is_exchange = case.operation == "send_recv_far"  # two operations, one after the other: half of it is one
    return [
        _to_row(case, name, [value / (1 + is_exchange) for value in times[name]], sent[name], len(bed), correct[name])
        for name in times
    ]


def _to_row(case: Case, name: str, times: list[float], sent: list[float], num_hosts: int, is_correct: bool) -> Row:
    return Row(
        case.operation,
        case.bytes,
        name,
        statistics.median(times),
        min(times),
        max(times),
        statistics.median(sent),
        least_bytes(case, num_hosts),
        is_correct,
    )


def _calibrate(team: Team, turn_s: float) -> int:
    """Find how many operations fill a turn; warms up on the way."""
    count, elapsed = 1, team.time(1)
    while elapsed < turn_s / 4 and count < _MOST_ITERATIONS:
        count *= 4
        elapsed = team.time(count)
    return max(1, min(_MOST_ITERATIONS, round(count * turn_s / elapsed)))

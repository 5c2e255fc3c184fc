"""Take turns: every round measures each contender once, so noise of the machine falls on all alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from phalanx_tools.bench.cases import CALL_BYTES, Case, Sample
from phalanx_tools.bench.starters import local_team
from phalanx_tools.bench.teams import Team

_TURN_S = 0.02  # how long a contender runs at a time
_WARM_UP_S = 0.005
_MOST_ITERATIONS = 50_000

Progress = Callable[[Case], None]


def measure_cases(
    cases: Sequence[Case],
    contenders: Sequence[str],
    rounds: int,
    on_case: Progress,
    on_absent: Callable[[str, str], None],
    versions: dict[str, str],
) -> list[Sample]:
    """Measure all cases with all contenders that can be started.

    Args:
        cases: What to measure.
        contenders: Who takes part.
        rounds: How many times each contender has its turn.
        on_case: Called before each case.
        on_absent: Called with name and reason when a contender can't take part.
        versions: Filled with the contenders' versions.
    """
    samples = []
    for num_ranks in sorted({case.ranks for case in cases}):
        with contextlib.ExitStack() as stack:
            teams = []
            for name in contenders:
                try:
                    teams.append(stack.enter_context(local_team(name, num_ranks)))
                    versions[name] = teams[-1].version
                except OSError as error:
                    on_absent(name, str(error))
            for case in cases if teams else ():
                if case.ranks == num_ranks:
                    on_case(case)
                    samples += _measure_case(case, teams, rounds)
    return samples


def _measure_case(case: Case, teams: Sequence[Team], rounds: int) -> list[Sample]:
    teams = [team for team in teams if _takes_part(team.contender, case)]
    correct = {team.contender: team.prepare(case) for team in teams}
    iterations = {team.contender: _calibrate(team) for team in teams}
    times: dict[str, list[float]] = {team.contender: [] for team in teams}
    for turn in range(rounds):
        # The order changes, so that nobody always runs after the same neighbour.
        shift = turn % len(teams)
        for team in [*teams[shift:], *teams[:shift]]:
            count = iterations[team.contender]
            times[team.contender].append(team.time(count) / count)
    scale = 0.5 if case.operation == "send_recv" else 1.0  # half a round trip
    return [
        Sample(case, team.contender, tuple(value * scale for value in times[team.contender]), correct[team.contender])
        for team in teams
    ]


def _takes_part(contender: str, case: Case) -> bool:
    if contender == "torch_alone":
        return case.bytes <= CALL_BYTES
    return contender != "copy" or case.bytes != 0


def _calibrate(team: Team) -> int:
    """Find how many operations fill a turn; warms up on the way."""
    count, elapsed = 1, team.time(1)
    while elapsed < _WARM_UP_S and count < _MOST_ITERATIONS:
        count *= 4
        elapsed = team.time(count)
    return max(1, min(_MOST_ITERATIONS, round(count * _TURN_S / elapsed)))

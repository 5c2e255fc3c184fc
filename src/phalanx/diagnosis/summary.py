"""A few lines that say what is wrong with a job, the most important first.

These are pure functions. They serve running jobs and flight records.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.diagnosis import formatting
from phalanx.diagnosis.findings import Findings, place_of
from phalanx.diagnosis.processes import describe_state
from phalanx.diagnosis.views import GroupView, ProcessView
from phalanx.diagnosis.waits import Key, Wait, describe_cycle, find_cycle
from phalanx.engine.facts import FaultFacts

LONG_S = 1.0  # a wait longer than this is reported
_SHOWN_CULPRITS = 8


def summarize(found: Findings) -> list[str]:
    """Return the lines that say what is wrong."""
    lines = [_describe_fault(found, group, group.fault) for group in found.seen.groups if group.fault is not None]
    long = [wait for wait in found.waits if found.waited_s(wait) > LONG_S]
    cycle = find_cycle(long)
    if cycle:
        lines += [_title_of_cycle(cycle), *describe_cycle(cycle)]
    lines += _describe_stopped(found)
    if long and (not cycle or any(wait.is_async for wait in cycle)):
        lines += _describe_holdup(found, long)
    return lines or [_describe_health(found), *_describe_places(found)]


def _describe_fault(found: Findings, group: GroupView, fault: FaultFacts) -> str:
    who = f"rank {found.member(group, fault.culprit)}" if fault.culprit >= 0 else "a rank"
    reporter = f"rank {found.member(group, fault.reporter)}" if fault.reporter >= 0 else "a rank"
    kinds = {
        "mismatch": f"{who} called something else than the others",
        "timeout": f"{reporter} timed out" + (f" waiting for {who}" if fault.culprit >= 0 else ""),
        "peer_died": f"{who} died",
        "peer_left": f"{who} {_describe_departure(group, fault)}",
        "peer_failed": f"{who} raised",
        "aborted": f"{who} aborted it",
        "interrupted": f"{who} was interrupted",
        "out_of_memory": f"{who} had not enough shared memory",
    }
    where = f" in operation #{fault.seq}" if fault.seq else ""
    text = f": {fault.text.splitlines()[0]}" if fault.text.strip() else _describe_detail(fault)
    return f'group "{group.name}" is broken{where}: {kinds.get(fault.kind, fault.kind)}{text}'


def _describe_departure(group: GroupView, fault: FaultFacts) -> str:
    has_ended = fault.culprit >= 0 and group.rows[fault.culprit].departure == "ended"
    return "has reached the end of its program" if has_ended else "left it"


def _describe_detail(fault: FaultFacts) -> str:
    if fault.kind == "timeout" and fault.awaited == "stream":
        return ": its GPU had not finished what it was given before"
    if fault.wanted_bytes == fault.found_bytes:
        return ""
    verbs = ("needed", "available") if fault.kind == "out_of_memory" else ("expected", "given")
    return f": {fault.wanted_bytes} bytes {verbs[0]}, {fault.found_bytes} {verbs[1]}"


def _title_of_cycle(cycle: Sequence[Wait]) -> str:
    if any(wait.is_async for wait in cycle):
        return "perhaps a deadlock: these ranks are in each other's way, if they wait for their asynchronous operations"
    return "deadlock: these ranks wait for each other, and none can go on"


def _describe_stopped(found: Findings) -> list[str]:
    lines = []
    for process in found.seen.processes:
        ranks = found.ranks_of(process)
        if process.state in ("T", "t") and ranks:
            # A signal would not continue a process that a debugger has stopped.
            advice = f"; kill -CONT {process.pid} lets it go on" if process.state == "T" else ""
            lines.append(
                f"{formatting.rank_list(ranks)} (pid {process.pid}) is {describe_state(process.state)}{advice}"
            )
    return lines


def _describe_holdup(found: Findings, long: Sequence[Wait]) -> list[str]:
    culprits = _find_culprits(found, long)
    lines = []
    for (key, number), held in list(culprits.items())[:_SHOWN_CULPRITS]:
        lines.append(_describe_culprit(found, key, number, held))
        lines += _describe_children(found, found.process(key), f"rank {number}")[:_SHOWN_CULPRITS]
    if len(culprits) > _SHOWN_CULPRITS:
        lines.append(f"and {len(culprits) - _SHOWN_CULPRITS} more ranks hold up others")
    for wait in long:
        if wait.is_any:
            waited = formatting.seconds(found.waited_s(wait))
            lines.append(f"rank {wait.rank} has waited {waited} in {wait.text}: no rank has sent it")
    return lines or [
        f"{formatting.rank_list(wait.rank for wait in long)} wait for ranks that wait themselves; see below"
    ]


def _find_culprits(found: Findings, long: Sequence[Wait]) -> dict[tuple[Key, int], list[Wait]]:
    """Return the ranks that others wait for and that do not wait; or else those that may only have async operations."""
    waiting = {wait.key for wait in found.waits}
    surely_waiting = {wait.key for wait in found.waits if not wait.is_async}
    by_culprit: dict[tuple[Key, int], list[Wait]] = {}
    for excused in (waiting, surely_waiting):
        for wait in long:
            for key, number in zip(wait.keys, wait.waits_for, strict=True):
                if key not in excused and not wait.is_any:
                    by_culprit.setdefault((key, number), []).append(wait)
        if by_culprit:
            break
    return by_culprit


def _describe_culprit(found: Findings, key: Key, number: int, held: Sequence[Wait]) -> str:
    process = found.process(key)
    name = f"rank {number}"
    if not key[0]:
        name += ", which has not joined,"
    elif process is None or process.state in ("", "Z", "X"):
        name += f", whose process {key[0]} has ended,"
    ranks = formatting.rank_list(wait.rank for wait in held)
    longest = max(found.waited_s(wait) for wait in held)
    stand = found.stand(key)
    where = f"; it is at {stand[0]}" if stand else ""
    return f"{name} holds up {ranks}, in {held[0].text}, for {formatting.seconds(longest)}{where}"


def _describe_places(found: Findings) -> list[str]:
    """Say which line of the program each rank is at, and the processes that it has started."""
    ranks: dict[str, list[int]] = {}
    lines = []
    for process in found.seen.processes:
        numbers = found.ranks_of(process)
        for key in found.keys_of(process):
            place = place_of(process) if not key[1] else next(iter(found.stand(key)), "")
            if place:
                ranks.setdefault(place, []).append(found.world[key])
        if numbers:
            lines += _describe_children(found, process, formatting.rank_list(numbers))
    shown = [
        f"{formatting.rank_list(numbers)} {'is' if len(numbers) == 1 else 'are'} at {place}"
        for place, numbers in ranks.items()
    ]
    return [*shown[:_SHOWN_CULPRITS], *lines[:_SHOWN_CULPRITS]]


def _describe_children(found: Findings, process: ProcessView | None, ranks: str) -> list[str]:
    """Say which line each process that a rank has started is at, such as a worker of a DataLoader; not of idle ones."""
    children = [] if process is None else found.children_of(process)
    return [
        f"pid {child.pid}, which {ranks} started, is at {place}" for child in children if (place := place_of(child))
    ]


def _describe_health(found: Findings) -> str:
    if all(group.is_empty for group in found.seen.groups):
        return "no rank is in a group of phalanx, so it is not known which rank waits for which"
    if not found.waits:
        return "no rank waits in an operation of phalanx"
    longest = max(found.waited_s(wait) for wait in found.waits)
    return f"no rank has waited longer than {formatting.seconds(longest)}"

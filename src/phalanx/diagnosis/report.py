"""An observation in words: who holds up whom, what every rank does, where it stands, what it did last.

Pure functions: the same for a job that runs and for a flight record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.diagnosis import words
from phalanx.diagnosis.observation import Observation, ProcessView
from phalanx.diagnosis.processes import describe_state
from phalanx.diagnosis.stacks import is_launchers, parse_stacks, stack_of
from phalanx.diagnosis.waits import Key, Row, Wait, describe_cycle, find_cycle, find_waits, key_of, world_of

LONG_S = 1.0  # a rank that waits longer is worth a word
_SHOWN_OPERATIONS = 5
_SHOWN_FRAMES = 12


def summarize(seen: Observation) -> list[str]:
    """Say what is the matter, the most important first."""
    world = world_of(seen.groups, seen.pids())
    told = [line for group in seen.groups if group["fault"] is not None for line in [_describe_fault(group)]]
    waits = find_waits(seen.groups, world)
    cycle = find_cycle([wait for wait in waits if _waited_s(seen, wait) > LONG_S])
    if cycle:
        told += ["deadlock: these ranks wait for each other, and none can go on", *describe_cycle(cycle)]
    told += _describe_stopped(seen, world)
    long = [wait for wait in waits if _waited_s(seen, wait) > LONG_S]
    if not cycle and long:
        told += _describe_holdup(seen, long, {wait.key for wait in waits}, world)
    return told or [_describe_health(seen, waits)]


def _describe_fault(group: Mapping[str, Any]) -> str:
    fault = group["fault"]
    who = f"rank {fault['culprit']}" if fault["culprit"] >= 0 else "a rank"
    kinds = {
        "mismatch": f"{who} called something else than the others",
        "timeout": f"rank {fault['reporter']} timed out" + (f" waiting for {who}" if fault["culprit"] >= 0 else ""),
        "peer_died": f"{who} died",
        "peer_left": f"{who} left it",
        "peer_failed": f"{who} raised",
        "aborted": f"{who} aborted it",
        "interrupted": f"{who} was interrupted",
        "out_of_memory": f"{who} had not enough shared memory",
    }
    where = f" in operation #{fault['seq']}" if fault["seq"] else ""
    text = f": {fault['text'].splitlines()[0]}" if fault["text"].strip() else ""
    return f'group "{group["name"]}" is broken{where}: {kinds.get(fault["kind"], fault["kind"])}{text}'


def _describe_stopped(seen: Observation, world: Mapping[Key, int]) -> list[str]:
    told = []
    for process in seen.processes:
        ranks = sorted(rank for key, rank in world.items() if key[0] == process.pid)
        if process.state in ("T", "t") and ranks:
            told.append(
                f"{words.rank_list(ranks)} (pid {process.pid}) is {describe_state(process.state)}; "
                f"kill -CONT {process.pid} lets it go on"
            )
    return told


def _describe_holdup(
    seen: Observation, waits: Sequence[Wait], waiting: set[Key], world: Mapping[Key, int]
) -> list[str]:
    by_culprit: dict[Key, list[Wait]] = {}
    for wait in waits:
        for key in wait.keys:
            if key not in waiting:
                by_culprit.setdefault(key, []).append(wait)
    told = []
    for key, held in by_culprit.items():
        ranks = words.rank_list(wait.rank for wait in held)
        longest = max(_waited_s(seen, wait) for wait in held)
        name = f"rank {world[key]}" if key in world else "a rank that has not joined"
        stand = _stand(seen, key)
        told.append(
            f"{name} holds up {ranks}, in {held[0].text}, for {words.seconds(longest)}"
            + (f"; it is at {stand[0]}" if stand else "")
        )
    return told or [f"{words.rank_list(wait.rank for wait in waits)} wait for ranks that wait themselves; see below"]


def _describe_health(seen: Observation, waits: Sequence[Wait]) -> str:
    if not seen.groups:
        return "no group: the ranks have not connected, or have closed everything"
    longest = max((_waited_s(seen, wait) for wait in waits), default=0.0)
    if not waits:
        return "nobody waits"
    return f"nobody has waited longer than {words.seconds(longest)}"


def _entry_of(seen: Observation, wait: Wait) -> Row | None:
    for group in seen.groups:
        for row in group["rows"]:
            if group["name"] == wait.group and key_of(row) == wait.key:
                found: Row | None = row["mail"] or row["entry"]
                return found
    return None


def _waited_s(seen: Observation, wait: Wait) -> float:
    entry = _entry_of(seen, wait)
    return max(0.0, (seen.monotonic_ns - entry["start_ns"]) * 1e-9) if entry is not None else 0.0


def _stand(seen: Observation, key: Key) -> list[str]:
    """Return the calls a rank is in, the innermost first; those of the user's code, if there are any."""
    process = next((each for each in seen.processes if each.pid == key[0]), None)
    if process is None or not process.stacks:
        return []
    threads = {row["thread"] for group in seen.groups for row in group["rows"] if key_of(row) == key}
    stack = stack_of(parse_stacks(process.stacks), next(iter(threads), 0))
    return [] if stack is None else [str(frame) for frame in stack.users_frames()]


def render(seen: Observation, *, is_full: bool = True) -> str:
    """Return everything as text; without the past of the ranks when it shall be short."""
    world = world_of(seen.groups, seen.pids())
    lines = [_headline(seen), *(f"  {line}" for line in summarize(seen))]
    for group in seen.groups:
        lines += ["", f'group "{group["name"]}", {group["num_ranks"]} ranks']
        lines += [f"  {_describe_row(seen, group, row)}" for row in group["rows"]]
    lines += _render_stacks(seen, world)
    if is_full:
        lines += _render_past(seen)
    lines += [f"note: {note}" for note in seen.notes]
    return "\n".join(lines)


def _headline(seen: Observation) -> str:
    job = seen.job
    name = f'job "{job["name"]}"' if job.get("name") else "job"
    pid = job.get("pid") or (seen.processes[0].pid if seen.processes else 0)
    since = f", for {words.seconds(seen.unix_s - job['started_unix'])}" if job.get("started_unix") else ""
    why = f": {seen.reason}" if seen.reason else ""
    num_ranks = job.get("num_ranks") or len(world_of(seen.groups)) or len(seen.processes)
    return f"{name} (pid {pid}) on {seen.host}, {num_ranks} ranks{since}{why}"


def _describe_row(seen: Observation, group: Mapping[str, Any], row: Row) -> str:
    world = world_of(seen.groups, seen.pids())
    wait = next((each for each in find_waits([group], world) if each.key == key_of(row)), None)
    others = [each for each in find_waits(seen.groups, world) if each.key == key_of(row)]
    entry = row["entry"]
    if row["state"] in ("absent", "left", "dead"):
        doing = {"absent": "has not joined", "left": "has left", "dead": words.death(row["exit_status"])}[row["state"]]
        doing += f"; its last: {words.operation(entry)}" if entry is not None else ""
    elif row["is_debugged"]:
        doing = "stands at a breakpoint"
    elif wait is not None:
        waiting_for = words.rank_list(wait.waits_for) if not wait.is_any else "any rank"
        doing = f"waits {words.seconds(_waited_s(seen, wait))} in {wait.text}, for {waiting_for}"
    elif entry is not None and row["finished"] < entry["seq"]:
        doing = f"is in {words.operation(entry)}"
    elif others:
        doing = f'waits in group "{others[0].group}"'
    elif entry is not None:
        ago = words.seconds(max(0.0, (seen.monotonic_ns - entry["start_ns"]) * 1e-9))
        doing = f"computes; its last: {words.operation(entry)}, begun {ago} ago"
    else:
        doing = "computes; has not called anything yet"
    pid = row["pid"] or row["launched_pid"]
    return f"rank {row['rank']:<3} pid {pid:<8} {doing}"


def _render_stacks(seen: Observation, world: Mapping[Key, int]) -> list[str]:
    lines: list[str] = []
    for process in seen.processes:
        ranks = sorted(rank for key, rank in world.items() if key[0] == process.pid)
        if ranks:
            state = f"{describe_state(process.state)}, {words.size(process.resident_bytes)}"
            lines += ["", f"{words.rank_list(ranks)} (pid {process.pid}), {state}", *_render_threads(process)]
    return lines


def _render_threads(process: ProcessView) -> list[str]:
    threads = parse_stacks(process.stacks)
    if not threads:
        return [
            "  its stacks can't be had: " + ("it is stopped" if process.state in ("T", "t") else "it did not answer")
        ]
    lines: list[str] = []
    for thread in sorted(threads, key=lambda each: not each.is_current):
        if len(threads) > 1:
            lines.append(f"  thread {thread.ident:#x}{' (answered)' if thread.is_current else ''}")
        frames = [frame for frame in thread.frames if not is_launchers(frame.file)]
        lines += [f"    {frame}" for frame in frames[:_SHOWN_FRAMES]] or ["    no Python code"]
    return lines


def _render_past(seen: Observation) -> list[str]:
    lines: list[str] = []
    for group in seen.groups:
        for row, records in zip(group["rows"], group["records"], strict=True):
            past = sorted([*records["operations"], *records["messages"]], key=lambda entry: entry["start_ns"])
            if past:
                lines += ["", f'last operations of rank {row["rank"]} in group "{group["name"]}"']
                lines += [f"  {_describe_past(seen, entry)}" for entry in past[-_SHOWN_OPERATIONS:]]
    return lines


def _describe_past(seen: Observation, entry: Row) -> str:
    ago = (seen.monotonic_ns - entry["start_ns"]) * 1e-9
    took = f"took {(entry['end_ns'] - entry['start_ns']) * 1e-3:.0f} us" if entry["end_ns"] else "did not end"
    what = f"{entry['dtype']} {words.shape(entry['shape'])} {words.size(entry['size_bytes'])}"
    if entry["operation"] == "barrier":
        what = ""
    return f"{words.seconds(max(ago, 0.0)):>8} ago  {words.operation(entry)}  {what}  {took}"

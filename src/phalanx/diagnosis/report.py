"""The text of an observation: which rank holds up which, what every rank does, its stack, and its last operations.

These are pure functions. They serve running jobs and flight records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.diagnosis.findings import Findings, find
from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.plain_data import fields_of
from phalanx.diagnosis.processes import describe_state
from phalanx.diagnosis.stacks import Frame, is_launchers, parse_stacks
from phalanx.diagnosis.summary import summarize
from phalanx.diagnosis.views import GroupView, ProcessView
from phalanx.diagnosis.waits import Wait, find_waits, in_world, key_of
from phalanx.engine.facts import EntryFacts, RankFacts

_SHOWN_OPERATIONS = 5
_SHOWN_FRAMES = 12
_SHOWN_COMMAND = 80


def render(seen: Observation, *, is_full: bool = True) -> str:
    """Return an observation as text, with the last operations of the ranks if `is_full`.

    Names and texts come from programs, perhaps of other users, so control characters in them are escaped.
    """
    seen = _visible(seen)
    found = find(seen)
    lines = [_headline(found), *(f"  {line}" for line in summarize(found))]
    for group in seen.groups:
        if group.is_empty:  # the launcher has made it, and no rank uses it
            continue
        lines += [
            "",
            f'group "{group.name}", {formatting.rank_list(_members(found, group))}',
            *_render_rows(found, group),
        ]
    lines += _render_stacks(found)
    if is_full:
        lines += _render_past(found)
    lines += [f"note: {note}" for note in seen.notes]
    return "\n".join(lines)


def _visible(value: Any, name: str = "") -> Any:
    """Write control characters in all texts as escapes; an error and stacks may have several lines, a name may not."""
    if isinstance(value, str):
        return formatting.visible_lines(value) if name in ("text", "stacks") else formatting.visible(value)
    fields = fields_of(value)
    if fields is not None:
        return type(value)(**{name: _visible(each, name) for name, each in fields.items()})
    return [_visible(each) for each in value] if isinstance(value, list) else value


def _members(found: Findings, group: GroupView) -> list[int]:
    return [found.member(group, rank) for rank in range(group.num_ranks)]


def _headline(found: Findings) -> str:
    seen, job = found.seen, found.seen.job
    name = f'job "{job.name}"' if job.name else "job"
    pid = job.pid or (seen.processes[0].pid if seen.processes else 0)
    since = f", for {formatting.seconds(seen.unix_s - job.started_unix)}" if job.started_unix else ""
    why = f": {seen.reason}" if seen.reason else ""
    num_ranks = job.num_ranks or len(found.world) or len(seen.processes)
    ranks = f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return f"{name} (pid {pid}) on {seen.host}, {ranks}{since}{why}"


def _render_rows(found: Findings, group: GroupView) -> list[str]:
    waits = {wait.key: wait for wait in reversed(find_waits([group], found.world))}
    elsewhere = {wait.key: wait.group for wait in reversed(found.waits)}
    lines = []
    for row in group.rows:
        doing = _describe_row(found, group, row, waits.get(key_of(row)), elsewhere.get(key_of(row)))
        lines.append(f"  rank {found.member(group, row.rank):<3} pid {row.any_pid:<8} {doing}")
    return lines


def _describe_row(found: Findings, group: GroupView, row: RankFacts, wait: Wait | None, elsewhere: str | None) -> str:
    entry = None if row.entry is None else in_world(row.entry, group, found.world)
    if row.state in ("absent", "left", "dead"):
        doing = {"absent": "has not joined", "left": "has left", "dead": formatting.death(row.exit_status)}[row.state]
        return doing + (f"; its last: {formatting.operation(entry)}" if entry is not None else "")
    if wait is not None and not row.is_debugged:
        waiting_for = formatting.rank_list(wait.waits_for) if not wait.is_any else "any rank"
        return f"waits {formatting.seconds(found.waited_s(wait))} in {wait.text}, for {waiting_for}"
    if entry is not None and row.collective is not None and not row.is_debugged:
        return (
            f"is in {formatting.operation(entry)}"
            if group.fault is None
            else f"failed in {formatting.operation(entry)}"
        )
    if elsewhere is not None and not row.is_debugged:
        return f'waits in group "{elsewhere}"'
    stand = found.stand(key_of(row))
    doing = f"is at {stand[0]}" if stand else "runs"
    if row.is_debugged:
        doing = "stands at a breakpoint"
    last = "has not called anything in this group yet"
    if entry is not None:
        last = f"its last: {formatting.operation(entry)}, begun {formatting.seconds(found.since_s(entry.start_ns))} ago"
    return f"{doing}; {last}"


def _render_stacks(found: Findings) -> list[str]:
    lines: list[str] = []
    for process in found.seen.processes:
        ranks = found.ranks_of(process)
        if ranks:
            state = f"{describe_state(process.state)}, {formatting.size(process.resident_bytes)}"
            lines += ["", f"{formatting.rank_list(ranks)} (pid {process.pid}), {state}", *_render_threads(process)]
            for child in found.children_of(process):
                lines.append(f"  its child pid {child.pid}, {describe_state(child.state)}: {_name(child, process)}")
                lines += [f"  {line}" for line in _render_threads(child)] if child.stacks else []
    return lines


def _name(child: ProcessView, parent: ProcessView) -> str:
    """Return the command of a child; a forked process, such as a worker of a DataLoader, has its parent's."""
    if child.command == parent.command:
        return "forked by it"
    return " ".join(word.rpartition("/")[2] or word for word in child.command)[:_SHOWN_COMMAND]


def _render_threads(process: ProcessView) -> list[str]:
    threads = parse_stacks(process.stacks)
    if not threads:
        return [
            "  it can't show its stack: " + ("it is stopped" if process.state in ("T", "t") else "it did not answer")
        ]
    lines: list[str] = []
    for thread in sorted(threads, key=lambda each: not each.is_current):
        if len(threads) > 1:
            lines.append(f"  thread {thread.ident:#x}{' (answered)' if thread.is_current else ''}")
        frames = [frame for frame in thread.frames if not is_launchers(frame.file)]
        lines += _render_frames(frames, thread.users_frames()[:1])
    return lines


def _render_frames(frames: Sequence[Frame], place: Sequence[Frame]) -> list[str]:
    """Show the line of the program first, then what it has called, then what has called it."""
    if not frames:
        return ["    no Python code"]
    at = frames.index(place[0]) if place and place[0] in frames else 0
    called = [f"      {frame}" for frame in frames[:at][-_SHOWN_FRAMES:]]
    first = f"    {frames[at]}" + (", which called:" if called else "")
    return [first, *reversed(called), *(f"    {frame}" for frame in frames[at + 1 :][:_SHOWN_FRAMES])]


def _render_past(found: Findings) -> list[str]:
    lines: list[str] = []
    for group in found.seen.groups:
        for row, records in zip(group.rows, group.records, strict=True):
            past = sorted([*records.operations, *records.messages], key=lambda entry: entry.start_ns)
            if past:
                rank = found.member(group, row.rank)
                lines += ["", f'last operations of rank {rank} in group "{group.name}"']
                lines += [f"  {_describe_past(found, group, entry)}" for entry in past[-_SHOWN_OPERATIONS:]]
    return lines


def _describe_past(found: Findings, group: GroupView, entry: EntryFacts) -> str:
    ago = found.since_s(entry.start_ns)
    took = f"took {(entry.end_ns - entry.start_ns) * 1e-3:.0f} us" if entry.end_ns else "did not end"
    what = f"{entry.dtype} {formatting.shape(entry.shape)} {formatting.size(entry.size_bytes)}  "
    if entry.operation == "barrier":
        what = ""
    return (
        f"{formatting.seconds(ago):>8} ago  {formatting.operation(in_world(entry, group, found.world))}  {what}{took}"
    )

"""The text of an observation: which rank holds up which, what every rank does, its stack, and its last operations.

These are pure functions. They serve running jobs and flight records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.diagnosis.findings import Findings, find
from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.over_hosts import summarize_hosts
from phalanx.diagnosis.plain_data import fields_of
from phalanx.diagnosis.processes import describe_state
from phalanx.diagnosis.stacks import Frame, ThreadStack, is_launchers, is_users, parse_stacks
from phalanx.diagnosis.summary import summarize
from phalanx.diagnosis.views import GroupView, ProcessView
from phalanx.diagnosis.waits import MOST_AWAITED, Wait, in_world, key_of
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
    others = [host.seen for host in seen.other_hosts if host.seen is not None]
    between = summarize_hosts([seen, *others]) if others else []
    lines = [_headline(found), *(f"  {line}" for line in between or summarize(found))]
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
    lines += [f"note: {note}" for note in (*seen.notes, *_left_out(found))]
    for host in seen.other_hosts:
        lines += ["", f"on {host.title}:"]
        lines += ["  it has not answered"] if host.seen is None else render(host.seen, is_full=is_full).splitlines()
    return "\n".join(lines)


def _left_out(found: Findings) -> list[str]:
    if not found.num_left_out:
        return []
    return [
        f"{found.num_left_out} more ranks wait, which is not shown: the others wait for {MOST_AWAITED} ranks already"
    ]


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
    where = f"{seen.host} ({job.host})" if job.host else seen.host
    return f"{name} (pid {pid}) on {where}, {ranks}{since}{why}"


def _render_rows(found: Findings, group: GroupView) -> list[str]:
    waits = found.waits_in(group)
    lines = []
    for row in group.rows:
        doing = _describe_row(found, group, row, waits.get(key_of(row)), found.elsewhere.get(key_of(row)))
        lines.append(f"  rank {found.member(group, row.rank):<3} pid {row.any_pid:<8} {doing}")
    return lines


def _describe_row(found: Findings, group: GroupView, row: RankFacts, wait: Wait | None, elsewhere: str | None) -> str:
    entry = None if row.entry is None else in_world(row.entry, group, found.world)
    if row.state in ("absent", "left", "dead"):
        left = "has left: its program has ended" if row.departure == "ended" else "has left"
        doing = {"absent": "has not joined", "left": left, "dead": formatting.death(row.exit_status)}[row.state]
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
            threads = {key[1]: found.world[key] for key in found.keys_of(process) if key[1]}
            lines += ["", f"{formatting.rank_list(ranks)} (pid {process.pid}), {state}"]
            lines += _render_threads(process, threads)
            for child in found.children_of(process):
                lines.append(f"  its child pid {child.pid}, {describe_state(child.state)}: {_name(child, process)}")
                lines += [f"  {line}" for line in _render_threads(child, {})] if child.stacks else []
    return lines


def _name(child: ProcessView, parent: ProcessView) -> str:
    """Return the command of a child; a forked process, such as a worker of a DataLoader, has its parent's."""
    if child.command == parent.command:
        return "forked by it"
    return " ".join(word.rpartition("/")[2] or word for word in child.command)[:_SHOWN_COMMAND]


def _render_threads(process: ProcessView, ranks: Mapping[int, int]) -> list[str]:
    """Show the main thread, those that are ranks and those that run the program; count the others."""
    threads = parse_stacks(process.stacks)
    if not threads:
        return [
            "  it can't show its stack: " + ("it is stopped" if process.state in ("T", "t") else "it did not answer")
        ]
    lines = [line for thread in threads if thread.is_current for line in _render_thread(thread)]
    others = [thread for thread in threads if not thread.is_current]
    shown = [each for each in others if each.ident in ranks or any(is_users(frame.file) for frame in each.own_frames())]
    by_lines: dict[tuple[str, ...], list[int]] = {}
    for thread in shown:
        by_lines.setdefault(tuple(_render_thread(thread)), []).append(thread.ident)
    for text, numbers in by_lines.items():
        lines += [f"  {_name_threads(numbers, ranks)}", *text]
    if num_quiet := len(others) - len(shown):
        more = "1 more thread that runs" if num_quiet == 1 else f"{num_quiet} more threads that run"
        lines.append(f"  ... {more} nothing of the program")
    return lines


def _name_threads(threads: Sequence[int], ranks: Mapping[int, int]) -> str:
    name = f"thread{'s' * (len(threads) > 1)} {', '.join(map(str, threads))}"
    those = [ranks[thread] for thread in threads if thread in ranks]
    return f"{name}, {formatting.rank_list(those)}" if those else name


def _render_thread(thread: ThreadStack) -> list[str]:
    place = thread.users_frames()[:1]
    frames = [frame for frame in thread.frames if not is_launchers(frame.file)]
    if not thread.is_current:  # what has started it is not the program
        while len(frames) > 1 and place and frames[-1] != place[0] and not is_users(frames[-1].file):
            frames.pop()
    return _render_frames(frames, place)


def _render_frames(frames: Sequence[Frame], place: Sequence[Frame]) -> list[str]:
    """Show the line of the program first, then what it has called, then what has called it."""
    if not frames:
        return ["    no Python code"]
    at = frames.index(place[0]) if place and place[0] in frames else 0
    called = [f"      {frame}" for frame in frames[:at][-_SHOWN_FRAMES:]]
    callers = [f"    {frame}" for frame in frames[at + 1 :][:_SHOWN_FRAMES]]
    if not called:
        return [f"    {frames[at]}", *callers]
    return [f"    {frames[at]}, which called:", *reversed(called), *(["    called by:", *callers] if callers else [])]


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

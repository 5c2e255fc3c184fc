"""Write a timeline in the trace event format that chrome://tracing and Perfetto open.

A rank is a process, and a group is a thread of it. Events of a thread do not overlap, because the format demands this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from phalanx.timeline.rows import Row
from phalanx.timeline.spans import Span, Timeline

Event = dict[str, Any]


def write_chrome_trace(timeline: Timeline, rows: Sequence[Row], file: TextIO) -> None:
    """Write the JSON object format, with one event per line."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    file.write('{"displayTimeUnit":"ns","otherData":' + encode(_facts(timeline)) + ',"traceEvents":[\n')
    lines = map(encode, _events(timeline, rows))
    file.write(next(lines, ""))
    for line in lines:
        file.write(",\n")
        file.write(line)
    file.write("\n]}\n")


def _facts(timeline: Timeline) -> Event:
    return {"recorder": "phalanx", "start_unix_ns": timeline.start_unix_ns}


def _events(timeline: Timeline, rows: Sequence[Row]) -> Iterator[Event]:
    for rank in timeline.ranks:
        yield _metadata("process_name", rank, 0, name=f"rank {rank}")
        yield _metadata("process_sort_index", rank, 0, sort_index=rank)
    for tid, row in enumerate(rows, start=1):
        yield _metadata("thread_name", row.rank, tid, name=row.label)
        yield _metadata("thread_sort_index", row.rank, tid, sort_index=tid)
    received = {span.event for span in timeline.spans if span.call.operation == "recv"}
    sent = {span.event for span in timeline.spans if span.call.operation == "send"}
    for tid, row in enumerate(rows, start=1):
        for span in row.spans:
            yield _complete(span, tid)
            if span.call.tag is not None and span.event in received and span.event in sent:
                yield _flow(span, tid)


def _metadata(kind: str, pid: int, tid: int, /, **args: Any) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(span: Span, tid: int) -> Event:
    return {
        "name": span.call.operation,
        "cat": "message" if span.call.tag is not None else "collective",
        "ph": "X",
        "pid": span.rank,
        "tid": tid,
        "ts": span.start_ns / 1000,
        "dur": span.duration_ns / 1000,
        "args": _args(span),
    }


def _args(span: Span) -> Event:
    call = span.call
    peer = span.group.members.get(span.peer, span.peer) if span.peer >= 0 else None
    root = span.group.members.get(call.root, call.root) if call.root is not None else None
    found = {
        "group": span.group.label,
        "number": span.number,
        "dtype": call.dtype or None,
        "shape": call.shape_text() if call.dtype else None,
        "op": call.op or None,
        "root": root,
        "peer": peer,
        "tag": call.tag,
        "bytes": call.size_bytes,
        "waited_us": span.waited_ns / 1000,
        "waited_for": span.waited_for,
        "line": span.place or None,
        "async": True if call.is_async else None,
        "unfinished": None if span.is_finished else True,
    }
    return {name: value for name, value in found.items() if value is not None}


def _flow(span: Span, tid: int) -> Event:
    is_send = span.call.operation == "send"
    # An arrow is attached to the span at its time stamp, so it must arrive before the span ends.
    at_ns = span.start_ns if is_send else max(span.start_ns, span.end_ns - 1)
    event = {"name": "message", "cat": "message", "ph": "s" if is_send else "f", "id": span.event,
             "pid": span.rank, "tid": tid, "ts": at_ns / 1000}  # fmt: skip
    return event if is_send else {**event, "bp": "e"}

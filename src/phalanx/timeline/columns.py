"""The spans in the form that the page reads: packed columns of numbers, and each text once."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

from phalanx.timeline.calls import OPERATIONS
from phalanx.timeline.rows import Row
from phalanx.timeline.spans import Span, Timeline

# The order in the packed bytes. Columns of eight bytes come first, so that all columns are aligned.
_COLUMNS = (("start", "d"), ("duration", "d"), ("waited", "d"), ("number", "d"), ("call", "I"), ("place", "I"),
            ("event", "I"), ("waitedFor", "i"), ("peer", "i"), ("unfinished", "I"))  # fmt: skip


def pack_columns(timeline: Timeline, rows: Sequence[Row]) -> tuple[dict[str, Any], str]:
    """Return the texts and the layout, for JSON, and the packed columns as base64.

    Spans are ordered by row, and by start within a row.
    """
    spans = [span for row in rows for span in row.spans]
    calls, places = _Numbers(), _Numbers()
    values = [
        (span.start_ns, span.duration_ns, span.waited_ns, span.number, calls.of((id(span.call), id(span.group)), span),
         places.of(span.place, span), span.event, -1 if span.waited_for is None else span.waited_for,
         span.group.members.get(span.peer, -1), not span.is_finished)
        for span in spans
    ]  # fmt: skip
    columns = list(zip(*values, strict=True)) or [()] * len(_COLUMNS)
    content = b"".join(array(code, column).tobytes() for (_, code), column in zip(_COLUMNS, columns, strict=True))
    content += array("I", _arrows(spans)).tobytes()
    about = {
        "numSpans": len(spans),
        "columns": [[name, code] for name, code in _COLUMNS],
        "operations": OPERATIONS,
        "wholeDuration": timeline.duration_ns,
        "ranks": timeline.ranks,
        "rows": [[row.rank, row.label, len(row.spans)] for row in rows],
        "calls": [_describe(span) for span in calls.firsts],
        "places": [span.place for span in places.firsts],
    }
    return about, base64.b64encode(zlib.compress(content, 6)).decode()


class _Numbers:
    """Numbers for values, in the order in which they are first seen, with the first span that has each value."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self.firsts: list[Span] = []

    def of(self, thing: object, span: Span) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self.firsts)
            self.firsts.append(span)
        return number


def _describe(span: Span) -> list[Any]:
    call = span.call
    data = f"{call.dtype} {call.shape_text()}" if call.dtype else ""
    root = None if call.root is None else span.group.members.get(call.root, -1)
    return [OPERATIONS.index(call.operation), data, call.op, root, call.size_bytes, call.tag, call.is_async]


def _arrows(spans: Sequence[Span]) -> list[int]:
    """Return the indices of send and receive of each message, one after the other, by the start of the send."""
    receives = {span.event: index for index, span in enumerate(spans) if span.call.operation == "recv"}
    pairs = [
        (span.start_ns, index, receives[span.event])
        for index, span in enumerate(spans)
        if span.call.operation == "send" and span.event in receives
    ]
    return [end for _, send, receive in sorted(pairs) for end in (send, receive)]

"""Make the page that shows a timeline: one file that loads nothing else and runs no code from names in a program."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files

from phalanx.timeline import tables
from phalanx.timeline.columns import pack_columns
from phalanx.timeline.rows import Row
from phalanx.timeline.spans import Timeline
from phalanx.timeline.summary import describe_gaps
from phalanx.timeline.traffic import count_traffic

_SCRIPTS = ("page_data.js", "page_view.js", "page_draw.js", "page_details.js", "page_input.js")


def make_page(timeline: Timeline, rows: Sequence[Row]) -> str:
    """Return the whole page as HTML."""
    about, columns = pack_columns(timeline, rows)
    traffic = count_traffic(timeline)
    script = "\n".join(_read(name) for name in _SCRIPTS)
    parts = {
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": _read("page.css"),
        "script": script,
        "about": _json_in_html(about),
        "columns": columns,
        "origin": tables.origin_html(timeline),
        "summary": tables.summary_html(timeline, traffic),
        "gaps": tables.gaps_html(describe_gaps(timeline)),
        "waits": tables.waits_html(timeline),
        "operations": tables.operations_html(timeline),
        "lines": tables.lines_html(timeline),
        "traffic": tables.traffic_html(timeline, traffic),
        "rules": tables.rules_html(),
    }
    # One pass, so that inserted text is never searched: a group may be called "{{script}}".
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return (files("phalanx.timeline") / name).read_text(encoding="utf-8")


def _json_in_html(value: object) -> str:
    """Write JSON that can't end the script element that contains it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

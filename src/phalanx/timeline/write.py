"""Turn a folder of raw files into the trace and the page."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from phalanx.errors import PhalanxError
from phalanx.timeline.chrome_trace import write_chrome_trace
from phalanx.timeline.page import make_page
from phalanx.timeline.rows import make_rows
from phalanx.timeline.spans import read_spans
from phalanx.timeline.summary import tell_gaps
from phalanx.timeline.waits import find_waits


@dataclass(frozen=True, slots=True)
class Written:
    """What was made.

    Attributes:
        page: The page to open in a browser.
        trace: The same for chrome://tracing and Perfetto.
        num_spans: Calls of all ranks.
        warnings: What the recording lacks, one sentence each.
    """

    page: Path
    trace: Path
    num_spans: int
    warnings: tuple[str, ...]


def write_timeline(folder: Path, *, keep_raw: bool = True) -> Written:
    """Read the raw files of a folder and write `trace.json` and `timeline.html` beside them.

    Both appear whole or not at all. Without `keep_raw` the raw files go once both are there.

    Raises:
        UsageError: There are no raw files, or one is damaged.
        PhalanxError: The results can't be written; the raw files are kept.
    """
    timeline = read_spans(folder)
    find_waits(timeline)
    rows = make_rows(timeline)
    trace, page = folder / "trace.json", folder / "timeline.html"
    _write_whole(trace, lambda file: write_chrome_trace(timeline, rows, file))
    html = make_page(timeline, rows)
    _write_whole(page, lambda file: file.write(html))
    if not keep_raw:
        for process in timeline.processes:
            (folder / process.file_name).unlink(missing_ok=True)
    return Written(page, trace, len(timeline.spans), tuple(tell_gaps(timeline)))


def _write_whole(path: Path, write: Callable[[TextIO], object]) -> None:
    """Write beside it and rename, so that nobody ever sees half a file."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            write(file)
        beside.replace(path)
    except OSError as error:
        raise PhalanxError(
            f"{path} can't be written: {error.strerror}. The raw files in {path.parent} are kept"
            f"\n  do       make room or give a folder that can be written, then: phalanx timeline {path.parent}"
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)

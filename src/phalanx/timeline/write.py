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
from phalanx.timeline.summary import describe_gaps
from phalanx.timeline.waits import find_waits


@dataclass(frozen=True, slots=True)
class Written:
    """The files that were written.

    Attributes:
        page: The page to open in a browser.
        trace: The same for chrome://tracing and Perfetto.
        num_spans: The number of calls on all ranks.
        warnings: Sentences that say what the recording lacks.
    """

    page: Path
    trace: Path
    num_spans: int
    warnings: tuple[str, ...]


def write_timeline(folder: Path, *, keep_raw: bool = True, may_be_empty: bool = False) -> Written:
    """Read the raw files of a folder and write `trace.json` and `timeline.html` beside them.

    Each file is written completely or not at all. Without `keep_raw`, the raw files are removed when both are written.
    With `may_be_empty`, a folder without raw files gets a page that says so.

    Raises:
        UsageError: There are no raw files, or one is damaged.
        PhalanxError: The results can't be written; the raw files are kept.
    """
    timeline = read_spans(folder, may_be_empty=may_be_empty)
    find_waits(timeline)
    rows = make_rows(timeline)
    trace, page = folder / "trace.json", folder / "timeline.html"
    _write_whole(trace, lambda file: write_chrome_trace(timeline, rows, file))
    html = make_page(timeline, rows)
    _write_whole(page, lambda file: file.write(html))
    if not keep_raw:
        for process in timeline.processes:
            (folder / process.file_name).unlink(missing_ok=True)
    return Written(page, trace, len(timeline.spans), tuple(describe_gaps(timeline)))


def _write_whole(path: Path, write: Callable[[TextIO], object]) -> None:
    """Write a temporary file and rename it, so that nobody sees an incomplete file."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            write(file)
        beside.replace(path)
    except OSError as error:
        raise PhalanxError(
            f"{path} can't be written: {error.strerror}. The raw files in {path.parent} still exist"
            f"\n  do       free some space or use another folder, then run: phalanx timeline {path.parent}"
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)

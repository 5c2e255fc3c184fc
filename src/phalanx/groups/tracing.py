"""`phalanx.trace`: every operation of this rank's groups written down, for a timeline."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from phalanx.engine import TraceFile
from phalanx.errors import UsageError
from phalanx.groups.open_groups import open_groups
from phalanx.launch.context import LaunchContext, current_context
from phalanx.settings import read_placement, trace_folder
from phalanx.timeline.recording import Recording
from phalanx.timeline.write import Written


class Traceable(Protocol):
    """A group, as far as this module needs it."""

    def _trace(self, file: TraceFile | None) -> None: ...


# The recordings under way, by the rank that makes them: a thread's context, or None for the process. A child made by
# fork is not that rank.
_recordings: dict[int | None, Recording] = {}
os.register_at_fork(after_in_child=_recordings.clear)


def _own_key() -> int | None:
    context = current_context()
    return id(context) if context is not None and context.is_thread else None


class trace:
    """Record all operations of this rank's groups inside the block.

    The folder then holds `timeline.html`, a page to open in a browser, and `trace.json` for chrome://tracing and
    Perfetto; the rank that leaves its block last makes them. Every rank that shall be seen must have such a block.

    Args:
        folder: Where to; made if it is not there.

    Attributes:
        written: What was made, on the rank that made it; else None.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.written: Written | None = None

    def __enter__(self) -> trace:
        """Begin.

        Raises:
            UsageError: This rank records already.
            PhalanxError: The folder can't be written to.
        """
        begin(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End.

        Raises:
            PhalanxError: The timeline can't be written.
        """
        self.written = _end(is_drawn=True)


def begin(folder: Path) -> None:
    """Record from now on.

    Raises:
        UsageError: This rank records already.
        PhalanxError: The folder can't be written to.
    """
    key = _own_key()
    if key in _recordings:
        raise UsageError(f"trace: this rank records already, into {_recordings[key].folder}")
    recording = _recordings[key] = Recording(folder, _own_rank(current_context()))
    _trace_all(open_groups(), recording.file)


def _end(*, is_drawn: bool) -> Written | None:
    recording = _recordings.pop(_own_key(), None)
    if recording is None:  # a child made by fork leaves the block too
        return None
    _trace_all(open_groups(), None)
    return recording.close(is_drawn=is_drawn)


def _trace_all(groups: Iterable[Traceable], file: TraceFile | None) -> None:
    for group in groups:
        group._trace(file)


def _own_rank(context: LaunchContext | None) -> int:
    if context is not None:
        return context.rank
    placement = read_placement()
    return placement.rank if placement is not None else -1


def join_recording(group: Traceable) -> None:
    """Let a new group be recorded: by the block it was made in, or because `phalanx run --trace` asked for it.

    Raises:
        PhalanxError: The folder can't be written to.
    """
    key, folder = _own_key(), trace_folder()
    if key not in _recordings:
        if folder is None:
            return
        begin(folder)  # the launcher draws it
        atexit.register(_end_quietly)
    group._trace(_recordings[key].file)


def _end_quietly() -> None:
    for recording in _recordings.values():
        recording.file.close()

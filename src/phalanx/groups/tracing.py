"""`phalanx.trace`: record every operation of this rank's groups, for a timeline."""

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
    """The part of a group that this module needs."""

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

    The rank that leaves its block last writes two files: `timeline.html`, a page for a browser, and `trace.json` for
    chrome://tracing and Perfetto. The timeline shows the ranks that have such a block.

    Args:
        folder: The folder to write to. It is created if it does not exist.

    Attributes:
        written: The files, on the rank that wrote them; None on the others.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.written: Written | None = None

    def __enter__(self) -> trace:
        """Begin to record.

        Raises:
            UsageError: This rank is already recording.
            PhalanxError: The folder can't be written to.
        """
        begin(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End the recording, and write the timeline if this rank is the last.

        Raises:
            PhalanxError: The timeline can't be written.
        """
        self.written = _end(is_drawn=True)


def begin(folder: Path) -> None:
    """Begin to record.

    Raises:
        UsageError: This rank is already recording.
        PhalanxError: The folder can't be written to.
    """
    key = _own_key()
    if key in _recordings:
        raise UsageError(f"trace: this rank is already recording, into {_recordings[key].folder}")
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
    """Record a new group if this rank is inside a trace block, or if PHALANX_TRACE is set.

    Raises:
        PhalanxError: The folder can't be written to.
    """
    key, folder = _own_key(), trace_folder()
    if key not in _recordings:
        if folder is None:
            return
        begin(folder)  # the launcher writes the timeline
        atexit.register(_end_quietly)
    group._trace(_recordings[key].file)


def _end_quietly() -> None:
    for recording in _recordings.values():
        recording.file.close()

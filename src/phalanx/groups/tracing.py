"""`phalanx.trace`: record every operation of this rank's groups, for a timeline."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from phalanx.engine import TraceFile
from phalanx.errors import PhalanxError, UsageError
from phalanx.groups.open_groups import open_groups
from phalanx.launch.context import current_context
from phalanx.settings import read_placement, set_trace_folder, trace_folder
from phalanx.timeline.recording import Recording
from phalanx.timeline.write import Written


class Traceable(Protocol):
    """The part of a group that this module needs."""

    def _trace(self, file: TraceFile | None) -> None: ...


_log = logging.getLogger("phalanx")

# The recordings under way: of ranks that are threads, by their context, and of the process (None). Ranks that are
# threads and have no recording of their own take part in that of the process. A child made by fork has none.
_recordings: dict[int | None, Recording] = {}
_beginning = threading.Lock()  # guards the decision to begin a recording


def _forget_recordings() -> None:
    global _beginning  # noqa: PLW0603 - a thread that is not in the child may hold the old one
    _beginning = threading.Lock()
    _recordings.clear()


os.register_at_fork(after_in_child=_forget_recordings)


def _own_key() -> int | None:
    context = current_context()
    return id(context) if context is not None and context.is_thread else None


class trace:
    """Record all operations of this rank's groups inside the block, and those of the ranks that it starts there.

    Around phalanx.spawn(), it records all ranks of the spawn. On ranks, the rank that leaves its block last writes the
    timeline, which shows the ranks that have such a block. Two files are written: `timeline.html`, a page for a
    browser, and `trace.json` for chrome://tracing and Perfetto.

    Args:
        folder: The folder to write to. It is created if it does not exist.

    Attributes:
        written: The files, on the rank that wrote them; None on the others.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._outer_folder: Path | None = None
        self.written: Written | None = None

    def __enter__(self) -> trace:
        """Begin to record.

        Raises:
            UsageError: This rank is already recording.
            PhalanxError: The folder can't be written to.
        """
        begin(self._folder)
        if _own_key() is None:  # the environment belongs to the process, not to one of its threads
            self._outer_folder = trace_folder()
            set_trace_folder(self._folder.absolute())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End the recording, and write the timeline if this rank is the last.

        Raises:
            PhalanxError: The timeline can't be written.
        """
        if _own_key() is None:
            set_trace_folder(self._outer_folder)
        try:
            self.written = _end()
        except PhalanxError as problem:
            if error is None:
                raise
            error.add_note(f"trace: no timeline: {problem}")  # the error of the block matters more
        if self.written is not None and not self.written.num_spans:
            _log.warning("trace: nothing to see in %s: %s", self.written.page, " ".join(self.written.warnings))


def begin(folder: Path) -> None:
    """Begin to record.

    Raises:
        UsageError: This rank is already recording.
        PhalanxError: The folder can't be written to.
    """
    key, rank = _own_key(), _own_rank()
    with _beginning:
        under_way = _recordings.get(key) or _recordings.get(None)
        if under_way is not None:
            raise UsageError(f"trace: this rank is already recording, into {under_way.folder}")
        recording = _recordings[key] = Recording(folder, is_thread=key is not None)
    groups = open_groups()
    if rank < 0 and not groups:  # this process may only start ranks
        return
    try:
        _trace_all(groups, recording.file_of(rank))
    except PhalanxError:
        del _recordings[key]
        recording.stop()
        raise


def _end() -> Written | None:
    recording = _recordings.pop(_own_key(), None)
    if recording is None:  # a child made by fork leaves the block too
        return None
    _trace_all(open_groups(), None)
    return recording.close(_own_rank())


def _trace_all(groups: Iterable[Traceable], file: TraceFile | None) -> None:
    for group in groups:
        group._trace(file)


def _own_rank() -> int:
    context = current_context()
    if context is not None:
        return context.rank
    placement = read_placement()
    return placement.rank if placement is not None else -1


def join_recording(group: Traceable) -> None:
    """Record a new group if this rank or its process is inside a trace block, or if PHALANX_TRACE is set.

    Raises:
        PhalanxError: The folder can't be written to.
    """
    recording = _recordings.get(_own_key()) or _recording_of_process()
    if recording is not None:
        group._trace(recording.file_of(_own_rank()))


def _recording_of_process() -> Recording | None:
    folder = trace_folder()
    with _beginning:
        if None not in _recordings and folder is not None:
            _recordings[None] = Recording(folder, is_thread=False)  # the launcher writes the timeline
            atexit.register(_end_quietly)
        return _recordings.get(None)


def _end_quietly() -> None:
    for recording in _recordings.values():
        recording.stop()

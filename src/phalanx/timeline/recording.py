"""The folder of a recording: which ranks record into it, and what earlier recordings have left there.

The folder itself is the lock. Every rank that records holds it shared; a rank that gets it exclusively is the first or
the last one.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from pathlib import Path

from phalanx.engine import TraceFile
from phalanx.errors import PhalanxError
from phalanx.timeline.write import Written, write_timeline

LIMIT_BYTES = 1 << 30  # for each rank: eight million operations
_RAW_NAME = re.compile(r"rank-(-?\d+)-(?P<pid>\d+)\.raw")


class Recording:
    """The part of one process, or of one rank that is a thread, in a recording. The code that makes it must close it.

    Threads may share it.

    Args:
        folder: The folder of the recording; it is made if necessary.
        is_thread: Whether it belongs to one thread; other threads of the process may have recordings of their own.
    """

    def __init__(self, folder: Path, *, is_thread: bool) -> None:
        """Begin to record.

        Raises:
            PhalanxError: The folder can't be written to.
        """
        self.folder = folder
        self._is_thread = is_thread
        self._opening = threading.Lock()  # guards _files
        self._files: dict[int, TraceFile] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            clear_old_recordings(folder, self._lock, clears_own=not is_thread)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except OSError as error:
            raise _not_writable(folder, error) from error

    def file_of(self, rank: int) -> TraceFile:
        """Return the file for the calls of a rank of this process; make it if necessary.

        Args:
            rank: The rank's number in the world; -1 if it has none.

        Raises:
            PhalanxError: The folder can't be written to.
        """
        with self._opening:
            if rank not in self._files:
                self._files[rank] = self._open(rank)
            return self._files[rank]

    def _open(self, rank: int) -> TraceFile:
        path = self.folder / f"rank-{rank}-{os.getpid()}.raw"
        try:
            path.unlink(missing_ok=True)
            return TraceFile(str(path), rank, LIMIT_BYTES)
        except OSError as error:
            raise _not_writable(self.folder, error) from error

    def stop(self) -> None:
        """Record no more calls, and write no timeline."""
        with self._opening:
            for file in self._files.values():
                file.close()

    def close(self, own_rank: int) -> Written | None:
        """Stop recording, and write the timeline, unless this rank has peers that still record.

        Raises:
            PhalanxError: The timeline can't be written.
        """
        self.stop()
        try:
            # Without a file of its own, this process is no peer of the ranks that record: it has started them.
            if own_rank in self._files and not _try_alone(self._lock):
                return None
            return write_timeline(self.folder, may_be_empty=True)
        finally:
            os.close(self._lock)


def _not_writable(folder: Path, error: OSError) -> PhalanxError:
    return PhalanxError(
        f"trace: {folder} can't be written to: {error.strerror}\n"
        f"  do       use another folder, or free some space: each rank needs at least 1 MiB"
    )


def clear_old_recordings(folder: Path, lock: int, *, clears_own: bool) -> None:
    """Remove the files of processes that have ended, and perhaps of this one, if no rank records into the folder."""
    if not _try_alone(lock):
        return
    for path in folder.glob("rank-*.raw"):
        found = _RAW_NAME.fullmatch(path.name)
        if found is not None and (_has_ended(found["pid"]) or (clears_own and found["pid"] == str(os.getpid()))):
            path.unlink(missing_ok=True)


def _has_ended(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _try_alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

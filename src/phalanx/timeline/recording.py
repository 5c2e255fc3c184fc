"""The folder of a recording: which ranks record into it, and what earlier recordings have left there.

The folder itself is the lock. Every rank that records holds it shared; a rank that gets it exclusively is the first or
the last one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from phalanx.engine import TraceFile
from phalanx.errors import PhalanxError
from phalanx.timeline.write import Written, write_timeline

LIMIT_BYTES = 1 << 30  # for each rank: eight million operations
_RAW_NAME = re.compile(r"rank-(-?\d+)-(?P<pid>\d+)\.raw")


class Recording:
    """One rank's part in a recording. The code that makes it must close it.

    Args:
        folder: The folder of the recording; it is made if necessary.
        rank: The rank's number in the world; -1 if it has none.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Begin to record.

        Raises:
            PhalanxError: The folder can't be written to.
        """
        self.folder = folder
        self.rank = rank
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            clear_old_recordings(folder, self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.file = TraceFile(str(self._path()), rank, LIMIT_BYTES)
        except OSError as error:
            raise PhalanxError(
                f"trace: {folder} can't be written to: {error.strerror}\n"
                f"  do       use another folder, or free some space: each rank needs at least 1 MiB"
            ) from error

    def _path(self) -> Path:
        """Return the path of this rank's file, and remove an older file there."""
        path = self.folder / f"rank-{self.rank}-{os.getpid()}.raw"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return path

    def close(self, *, is_drawn: bool) -> Written | None:
        """Stop recording. The last rank writes the timeline if `is_drawn`.

        Raises:
            PhalanxError: The timeline can't be written.
        """
        self.file.close()
        try:
            if not is_drawn or not _try_alone(self._lock):
                return None
            return write_timeline(self.folder)
        finally:
            os.close(self._lock)


def clear_old_recordings(folder: Path, lock: int) -> None:
    """Remove the files of processes that have ended, if no rank is recording into the folder."""
    if not _try_alone(lock):
        return
    for path in folder.glob("rank-*.raw"):
        found = _RAW_NAME.fullmatch(path.name)
        if found is not None and not Path(f"/proc/{found['pid']}").exists():
            path.unlink(missing_ok=True)


def _try_alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""The folder of a recording: who records into it at the moment, and what is left there from before.

A folder is its own lock. Everybody who records holds it shared; whoever gets it alone is the first or the last.
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

LIMIT_BYTES = 1 << 30  # of one rank: eight million operations
_RAW_NAME = re.compile(r"rank-(-?\d+)-(?P<pid>\d+)\.raw")


class Recording:
    """One rank's part in a recording. Whoever makes it closes it.

    Args:
        folder: Where to; made if it is not there.
        rank: The rank's number in the world; -1 when it has none.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Begin.

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
                f"  do       give another folder, or make room: a rank needs 1 MiB to begin with"
            ) from error

    def _path(self) -> Path:
        """Return a free name: the same rank may record twice."""
        path = self.folder / f"rank-{self.rank}-{os.getpid()}.raw"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return path

    def close(self, *, is_drawn: bool) -> Written | None:
        """End it. Whoever is the last draws the timeline, if it shall be drawn here.

        Raises:
            PhalanxError: It can't be written.
        """
        self.file.close()
        try:
            if not is_drawn or not _try_alone(self._lock):
                return None
            return write_timeline(self.folder)
        finally:
            os.close(self._lock)


def clear_old_recordings(folder: Path, lock: int) -> None:
    """Remove what processes that are gone have left in a folder, if nobody records there now."""
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

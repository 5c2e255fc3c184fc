"""The files for what ranks print and the terminal does not show, if the user has not asked for logs."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_MOST_BYTES = 1 << 26
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class KeptOutput:
    """The open files of a job: rank-<r>.err in a folder that is made when the first of them is written.

    Attributes:
        seen: What was seen of the job when it failed, after which the folder is named; set it before the first write.
        folder: The folder; None as long as nothing was written.
    """

    def __init__(self) -> None:
        self.seen: Observation | None = None
        self.folder: Path | None = None
        self._inside: int | None = None  # the descriptor of the folder
        self._files: dict[int, int] = {}
        self._left_bytes = _MOST_BYTES

    def write(self, rank: int, data: bytes) -> bool:
        """Add to a rank's file; return False if that is not possible, or would take too much room."""
        if len(data) > self._left_bytes or self.seen is None:
            return False
        try:
            descriptor = self._open(rank)
            while data:
                written = os.write(descriptor, data)
                self._left_bytes -= written
                data = data[written:]
        except (OSError, RuntimeError):  # the latter if the user has no home
            self._left_bytes = 0
            return False
        return True

    def _open(self, rank: int) -> int:
        if self._inside is None:
            self.folder = self._make_folder()
            self._inside = _open_own_folder(self.folder)
        if rank not in self._files:
            self._files[rank] = os.open(f"rank-{rank}.err", _NEW_FILE, 0o600, dir_fd=self._inside)
        return self._files[rank]

    def _make_folder(self) -> Path:
        # Only a job that fails needs them.
        from phalanx.diagnosis.record_folder import make_output_folder
        from phalanx.launch.private_folders import open_records
        from phalanx.settings import record_folder

        assert self.seen is not None
        return make_output_folder(self.seen, open_records(record_folder()))

    def close(self) -> None:
        """Close the files."""
        for descriptor in (*self._files.values(), *([] if self._inside is None else [self._inside])):
            os.close(descriptor)
        self._files.clear()
        self._inside = None


def _open_own_folder(folder: Path) -> int:
    """Open a folder that was just made. Where others may write to the folder above, they may have put another there.

    Raises:
        OSError: It is not this user's own.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{folder} belongs to somebody else")
    return descriptor

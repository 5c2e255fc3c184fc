"""Log files with everything that ranks print, byte for byte: rank-<r>.out and rank-<r>.err."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from phalanx.errors import UsageError


class Logs:
    """The open files of a job.

    Args:
        folder: Their folder; it is made if necessary.
        ranks: The numbers of the ranks.
        warn: Called once if something can't be written. The job continues.

    Raises:
        UsageError: The folder or a file in it can't be written.
    """

    def __init__(self, folder: Path, ranks: Iterable[int], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._has_warned = False
        self._files: dict[tuple[int, bool], int] = {}
        self._folder = folder
        self.open(ranks)

    def open(self, ranks: Iterable[int]) -> None:
        """Open the files of more ranks.

        Raises:
            UsageError: The folder or a file in it can't be written.
        """
        folder = self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for rank in ranks:
                for is_error in (False, True):
                    path = folder / f"rank-{rank}.{'err' if is_error else 'out'}"
                    self._files[rank, is_error] = os.open(
                        path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666
                    )
        except OSError as error:
            self.close()
            raise UsageError(f"--log-dir {folder}: {error.strerror} ({error.filename})") from None

    def write(self, rank: int, is_error: bool, data: bytes) -> None:
        """Add to a rank's file."""
        descriptor = self._files.get((rank, is_error))
        try:
            while descriptor is not None and data:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            os.close(self._files.pop((rank, is_error)))
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"the log of rank {rank} is not complete: {error.strerror}; the job goes on")

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

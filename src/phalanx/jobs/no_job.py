"""The error for a launcher that can't take part in a job on several hosts."""

from __future__ import annotations

from phalanx.errors import InternalError


class NoJobError(InternalError):
    """There will be no job, or no further attempt, on this host.

    Attributes:
        exit_code: The exit code of the launcher.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code

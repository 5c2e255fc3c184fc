"""The job's token: the secret that all hosts of a job share."""

from __future__ import annotations

import os
import stat

from phalanx.errors import UsageError
from phalanx.settings import job_token

_LONGEST = 4096


def read_token(file: str | None) -> str:
    """Return the token in a file; without one, the value of PHALANX_JOB_TOKEN; "" if there is none.

    Raises:
        UsageError: The file can't be read, is empty, or other users can read it.
    """
    if file is None:
        return job_token()
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            status = os.fstat(opened.fileno())
            token = opened.read(_LONGEST).strip()
    except OSError as error:
        raise UsageError(f"{file}: the token can't be read: {error.strerror}") from None
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid not in (os.geteuid(), 0):
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        raise UsageError(f"{file}: other users can read or change the token (mode {mode})\n  do       chmod 600 {file}")
    if not token:
        raise UsageError(
            f"{file}: there is no token in it\n  do       make one: (umask 077; openssl rand -hex 32 > {file})"
        )
    return token

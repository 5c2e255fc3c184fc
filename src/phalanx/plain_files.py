"""Open files that other users may have put there: only regular files, and without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain_file(path: Path) -> BinaryIO:
    """Open a file for reading, and refuse a pipe: opening one would wait until a process writes into it.

    Raises:
        OSError: It can't be opened, or it is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return open(descriptor, "rb")

"""Whether the number of this process's user stands for that user alone.

In a user namespace, the kernel shows everybody who has no number there as the same one (65534, mostly "nobody"). For a
process that is shown so itself, numbers say nothing: another user looks just like its own.
"""

from __future__ import annotations

import os
from pathlib import Path

_EVERYBODY = ["0", "0", "4294967295"]


def is_number_certain() -> bool:
    """Tell whether whoever has the number of this process's user is that user."""
    if os.geteuid() != int(Path("/proc/sys/kernel/overflowuid").read_text()):
        return True
    return Path("/proc/self/uid_map").read_text().split() == _EVERYBODY

"""Tell whether the numbers of this process's user and group belong to that user only.

In a user namespace, the kernel gives all users without a number there the same one (65534, mostly "nobody"). If this
process has that number itself, it can't tell its own user from others by number.
"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

_EVERYBODY = ["0", "0", "4294967295"]


def is_number_certain() -> bool:
    """Tell whether every process with this process's user number belongs to the same user."""
    if os.geteuid() != int(Path("/proc/sys/kernel/overflowuid").read_text()):
        return True
    return Path("/proc/self/uid_map").read_text().split() == _EVERYBODY


def is_group_of_one(group: int) -> bool:
    """Tell whether this process's user is the only member of a group: many systems give every user such a group."""
    try:
        user = pwd.getpwuid(os.geteuid())
        members = grp.getgrgid(group).gr_mem
    except KeyError:
        return False
    others = any(other.pw_gid == group and other.pw_uid != user.pw_uid for other in pwd.getpwall())
    return user.pw_gid == group and not others and set(members) <= {user.pw_name}

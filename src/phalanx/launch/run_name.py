"""A name for the job that torchrun or mpiexec has started, which all its ranks find without talking to each other.

The variables that such a launcher sets may be the same in every run. So another user who has seen the address at which
ranks meet could take it before the next run. But the process of the launcher differs in every run. A rank finds it
among its ancestors: it is the nearest one that was not started with the variables of this rank. There may be other
programs between it and the rank, such as a shell.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.diagnosis.processes import parent_of, start_of
from phalanx.launch.user_secret import make_private
from phalanx.settings import AssignedRank

_MOST_ANCESTORS = 64


def name_of_run(assigned: AssignedRank) -> str:
    """Return a name that only the ranks of this run know, as far as they can tell the run from others."""
    return make_private(f"{assigned.meeting}|{_launcher_of(assigned.marks)}")


def _launcher_of(marks: frozenset[str]) -> str:
    """Return the launcher's process and when it started; empty if this rank can't see it, as in its own container."""
    pid = parent_of("self") if marks else 0
    for _ in range(_MOST_ANCESTORS):
        if not pid:
            break
        try:
            variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # of another user: it can't be known whether this is the launcher
            break
        if not marks.issubset(each.decode(errors="replace") for each in variables):
            return f"{pid} {start_of(pid)}"
        pid = parent_of(pid)
    return ""

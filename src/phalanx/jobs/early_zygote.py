"""The process that ranks are forked from, started before the launcher has even read its arguments.

It takes most of a second to import torch. Whatever the launcher loads and checks meanwhile costs nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from phalanx.jobs.signals import TAKEN_SIGNALS
from phalanx.launch.zygote_client import ZygoteClient

# The working directory is not where it shall look for torch, as it is with -c.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); from phalanx.jobs.script import be_zygote; "
    "be_zygote(int(sys.argv[1]))"
)
# It may not be needed, or need other variables.
_NOT_YET = ("-h", "--help", "--env", "--gpus", "--virtual-gpus", "--virtual-memory", "--races")

REFUSED_EXIT_CODE = 2  # of a zygote that has said why it can't be as the user wants it

_early: list[tuple[ZygoteClient, int]] = []
_held: list[set[int | signal.Signals]] = []  # the mask of signals from before


def start_early(arguments: Sequence[str]) -> None:
    """Start it if the arguments of `phalanx run` look as if it will be wanted."""
    fill_standard_streams()
    if arguments and not any(word.partition("=")[0] in _NOT_YET for word in arguments):
        _held.append(signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS))  # the zygote lets them in for itself
        with contextlib.suppress(OSError):  # it is tried again when it is needed, and then said
            _early.append(start_zygote(None))
        atexit.register(_end_unused)


def fill_standard_streams() -> None:
    """Open the standard streams that are closed, on nothing: else the next pipe would be taken for one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def let_signals_in() -> None:
    """Deliver the signals that have come since the early start: there is somebody now who knows what to do."""
    while _held:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.pop())


def _end_unused() -> None:
    """End it when the arguments turned out to be wrong: it would notice only after it has imported torch."""
    while _early:
        zygote, _ = _early.pop()
        os.kill(zygote.pid, signal.SIGKILL)
        zygote.close()


def start_zygote(environment: Mapping[str, str] | None) -> tuple[ZygoteClient, int]:
    """Start it now; return it, and a descriptor to read what it prints.

    Args:
        environment: Its variables; this process's own if not given.
    """
    reader, writer = os.pipe()
    try:
        zygote = ZygoteClient(_PROGRAM, environment=environment, output=writer, is_apart=True)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return zygote, reader


def take_zygote(environment: Mapping[str, str]) -> tuple[ZygoteClient, int]:
    """Return the one that was started early, else a new one with these variables; it is the caller's now."""
    return _early.pop() if _early else start_zygote(environment)

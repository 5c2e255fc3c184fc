"""The process that ranks are forked from, started before the launcher has read its arguments.

Importing torch takes most of a second. The launcher loads and checks everything else in that time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from phalanx.jobs.signals import TAKEN_SIGNALS
from phalanx.launch.zygote_client import ZygoteClient

# It must not look for torch in the working directory, as Python does with -c.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); from phalanx.jobs.script import be_zygote; "
    "be_zygote(int(sys.argv[1]))"
)
# With these options it may not be needed, or may need other variables.
_NOT_YET = (
    *("-h", "--help", "--env", "--gpus"),
    *("--virtual-gpus", "--virtual-gpu", "--virtual-memory", "--races", "--stand-in"),
)

REFUSED_EXIT_CODE = 2  # the exit code of a zygote that has printed why it can't serve the job

_early: list[tuple[ZygoteClient, int]] = []
_held: list[set[int | signal.Signals]] = []  # the signal mask before the early start


def start_early(arguments: Sequence[str]) -> None:
    """Start it if the arguments of `phalanx run` suggest that it will be needed."""
    fill_standard_streams()
    if arguments and not any(_option_of(word) in _NOT_YET for word in arguments):
        _held.append(signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS))  # the zygote unblocks them for itself
        with contextlib.suppress(OSError):  # it is started again when it is needed; an error is reported then
            _early.append(start_zygote(None))
        atexit.register(_end_unused)


def _option_of(word: str) -> str:
    """Return an option with hyphens, which users may also write with underscores as for torchrun."""
    return word.partition("=")[0].replace("_", "-")


def fill_standard_streams() -> None:
    """Open closed standard streams on /dev/null, because otherwise the next pipe would become one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def let_signals_in() -> None:
    """Unblock the signals that were held back since the early start; their handlers are installed now."""
    while _held:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.pop())


def _end_unused() -> None:
    """End it if the arguments are wrong; it would notice by itself only after it has imported torch."""
    while _early:
        _early.pop()[0].close(at_once=True)


def start_zygote(environment: Mapping[str, str] | None) -> tuple[ZygoteClient, int]:
    """Start it now; return it, and a descriptor that has its output.

    Args:
        environment: Its variables; those of this process if not given.
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
    """Return the one that was started early, or a new one with these variables. The caller must end it."""
    return _early.pop() if _early else start_zygote(environment)

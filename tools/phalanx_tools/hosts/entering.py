"""Run a command on a host of a bed: the process between the caller and the command.

It hands on the signals that it gets, and ends as the command ends. The command dies with it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from phalanx_tools.hosts import kernel_calls

_HANDED_ON = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH
}  # fmt: skip
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_FOUND = 127


def main(init: str, namespaces: str, *command: str) -> NoReturn:
    """Run the command in some namespaces of a host's init, such as "net,uts"."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD})
    folder = os.getcwd()
    kernel_calls.join_namespaces(int(init), tuple(namespaces.split(",")))
    os.chdir(folder)
    parent = os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        kernel_calls.die_with(parent)
        _become(command, before)
    _end_like(_watch(child))


def _become(command: tuple[str, ...], mask: set[int | signal.Signals]) -> NoReturn:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND)


def _watch(child: int) -> int:
    """Hand on signals until the command ends; return its wait status."""
    while True:
        caught = signal.sigwaitinfo(_HANDED_ON | {signal.SIGCHLD})
        if caught.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
        elif caught.si_code <= 0:  # from a process; what the terminal sends, the command has got as well
            os.kill(child, caught.si_signo)


def _end_like(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)

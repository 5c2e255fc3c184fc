"""A rank as its crew sees it, and how one is forked from the calling process.

A forked rank has all modules and objects of its parent: nothing needs to be sent or imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from phalanx.launch.orphans import adopt_orphans, kill_descendants
from phalanx.launch.rank_process import die_with_parent
from phalanx.launch.waiting import is_readable
from phalanx.settings import set_environment_defaults
from phalanx.testing.line import Inbox, Line, open_line
from phalanx.testing.output import OutputFiles, create_output_files
from phalanx.testing.stacks import answer_with_stacks

FAILED_EXIT_CODE = 1
UNKNOWN_STATUS = -1


@dataclass
class Member:
    """One rank of a crew.

    Attributes:
        rank: Its number.
        pid: Its process.
        watch: A descriptor that becomes readable when the process ends.
        line: The crew's end of the line to it.
        files: What it prints.
        may_end: Tells of an exit status whether that is no failure although the rank has reported nothing.
    """

    rank: int
    pid: int
    watch: int
    line: Line
    files: OutputFiles
    may_end: Callable[[int], bool] = lambda status: False
    inbox: Inbox = field(default_factory=Inbox)
    status: int | None = None  # exit code or 256 + signal, once it has ended

    def is_running(self) -> bool:
        """Tell whether its process has not ended."""
        return self.status is None and not is_readable(self.watch, 0)

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started; SIGKILL also to daemons that have left its process group."""
        if number == signal.SIGKILL and self.is_running():
            kill_descendants(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have left its process group
                signal.pidfd_send_signal(self.watch, number)

    def reap(self) -> int | None:
        """Wait for its end; return how it ended: exit code, 256 + signal, or UNKNOWN_STATUS."""
        if self.status is None:
            self.status = _reap_child(self.pid)
        return self.status

    def close(self) -> None:
        """End it, if it still runs, and let go of everything."""
        self.signal(signal.SIGKILL)
        self.reap()
        os.close(self.watch)
        self.line.close()
        self.files.close()


def _reap_child(pid: int) -> int:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:  # somebody else has reaped it
        return UNKNOWN_STATUS
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 256 - code


def fork_member(
    rank: int, main: Callable[[Line, OutputFiles], None], *, before: Iterable[Member], redirect: bool
) -> Member:
    """Fork a rank that runs `main` and ends.

    Args:
        rank: Its number.
        main: What it does.
        before: Ranks forked before: the new one must not keep their lines open.
        redirect: Whether it prints into its files, not where this process does.
    """
    ours, theirs = open_line()
    files = create_output_files(rank)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # or every rank would print it again
    parent = os.getpid()
    state = random.getstate()
    # Until the child is in a process group of its own, a Ctrl-C would make it go on as a second parent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with warnings.catch_warnings():
        # Python warns of threads. Theirs are not in the child, and it uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        for member in before:
            member.line.close()
        ours.close()
        random.setstate(state)  # Python has seeded it anew
        _be_rank(parent, lambda: main(theirs, files), files, redirect, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with contextlib.suppress(OSError):  # the child does the same: whoever comes first
        os.setpgid(pid, pid)
    theirs.close()
    return Member(rank, pid, os.pidfd_open(pid), ours, files)


def _be_rank(
    parent: int, main: Callable[[], None], files: OutputFiles, redirect: bool, mask: Iterable[int]
) -> NoReturn:
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(parent)
        adopt_orphans()  # so that whoever ends this rank finds all it has started
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)  # Ctrl-C goes to the parent alone, which ends the ranks in good order
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.freeze()  # what came with the fork needs no looking through: that would copy its pages
        _forget_parents_duties()
        if redirect:
            files.redirect()
        answer_with_stacks(files)
        _use_one_thread()
        main()
        atexit._run_exitfuncs()
        code = 0
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else FAILED_EXIT_CODE
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _forget_parents_duties() -> None:
    """Keep this copy from doing at its end what its parent has to do."""
    atexit._clear()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes._children.clear()


def _use_one_thread() -> None:
    """torch's thread pool does not survive a fork; ranks share the machine's cores anyway."""
    set_environment_defaults(OMP_NUM_THREADS="1")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)

"""What all attempts of a job have in common: the process that ranks are forked from, the view, the logs."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.errors import InternalError, UsageError
from phalanx.jobs.early_zygote import REFUSED_EXIT_CODE, let_signals_in, take_zygote
from phalanx.jobs.job import Job
from phalanx.jobs.job_record import JobRecord
from phalanx.jobs.logs import Logs
from phalanx.jobs.output import LineSplitter
from phalanx.jobs.signals import SignalInbox
from phalanx.jobs.view import View
from phalanx.launch.orphans import adopt_orphans, end_children, own_children
from phalanx.launch.waiting import is_readable
from phalanx.launch.zygote_client import ZygoteClient

_FILES_PER_RANK, _OTHER_FILES = 7, 200
_END_PATIENCE_S = 1.0


class RefusedError(InternalError):
    """The process that ranks are forked from can't be as the user wants it, and has said why."""


class ZygoteOutput:
    """What the process that ranks are forked from prints: warnings, or why it did not start."""

    def __init__(self, descriptor: int, view: View) -> None:
        self.descriptor = descriptor
        self._view = view
        self._splitter = LineSplitter()

    def read(self) -> bool:
        """Show what is there; tell whether more may come."""
        data = os.read(self.descriptor, 1 << 16)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self._view.say(line.decode(errors="replace"))
        return bool(data)

    def drain(self) -> None:
        """Show what is left when that process has ended."""
        while self.read():
            pass


@dataclass
class Host:
    """The launcher's own things.

    Attributes:
        view: Where output goes.
        inbox: Signals to the launcher.
        logs: Files of output, if they are wanted.
        record: What other programs may know of the job.
        zygote: The process that ranks are forked from.
        zygote_pidfd: A handle of it.
        zygote_output: What it prints.
        run_id: A name for the job that no other has.
        open_files: How many files a rank may open.
        own: Children that this process had before.
    """

    view: View
    inbox: SignalInbox
    logs: Logs | None
    record: JobRecord
    zygote: ZygoteClient
    zygote_pidfd: int
    zygote_output: ZygoteOutput
    run_id: str
    open_files: int
    own: frozenset[int]

    def check_refusal(self) -> None:
        """Look how the zygote has ended that did not become ready.

        Raises:
            RefusedError: By its own decision.
        """
        if not is_readable(self.zygote_pidfd, _END_PATIENCE_S):
            return
        ended = os.waitid(os.P_PIDFD, self.zygote_pidfd, os.WEXITED | os.WNOWAIT)
        if ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, REFUSED_EXIT_CODE):
            raise RefusedError("virtual GPUs can't be set up")

    def reap_ranks(self) -> None:
        """End everything that is left of ranks whose zygote is gone."""
        end_children(keep=self.own | {self.zygote.pid})


@contextlib.contextmanager
def open_host(job: Job, view: View, logs: Logs | None) -> Iterator[Host]:
    """Start what ranks need; in the end, end all that is left of them.

    Raises:
        UsageError: So many ranks need more open files than this user may have.
    """
    zygote, reader = take_zygote(job.environment)
    with contextlib.ExitStack() as cleanup:
        own = frozenset(own_children()) - {zygote.pid}
        cleanup.callback(end_children, own)
        cleanup.callback(os.close, reader)
        inbox = cleanup.enter_context(SignalInbox())
        let_signals_in()
        cleanup.callback(_close, zygote)
        open_files = _allow_files(job.num_ranks, zygote.pid)
        adopt_orphans()
        pidfd = os.pidfd_open(zygote.pid)
        cleanup.callback(os.close, pidfd)
        record = JobRecord(job.name, job.program.command, job.num_ranks)
        cleanup.callback(record.close)
        yield Host(
            view=view,
            inbox=inbox,
            logs=logs,
            record=record,
            zygote=zygote,
            zygote_pidfd=pidfd,
            zygote_output=ZygoteOutput(reader, view),
            run_id=str(uuid.uuid4()),
            open_files=open_files,
            own=own,
        )


def _close(zygote: ZygoteClient) -> None:
    if not zygote.is_ready:
        os.kill(zygote.pid, signal.SIGKILL)  # it would see only when it has imported torch and built what is missing
    zygote.close()


def _allow_files(num_ranks: int, zygote: int) -> int:
    """Make sure that there may be a pipe for everything, here and in the zygote; return what the limit was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks * _FILES_PER_RANK + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"{num_ranks} ranks need {needed} open files and the limit is {hard}; raise it (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and needed > soft:
        for pid in (0, zygote):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (needed, hard))
    return soft

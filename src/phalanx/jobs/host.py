"""What all attempts of a job share: the process that ranks are forked from, the view and the logs."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.errors import InternalError, UsageError
from phalanx.jobs.early_zygote import REFUSED_EXIT_CODE, let_signals_in, take_zygote
from phalanx.jobs.job import Job
from phalanx.jobs.job_record import JobRecord
from phalanx.jobs.kept_output import KeptOutput
from phalanx.jobs.logs import Logs
from phalanx.jobs.output import LineSplitter
from phalanx.jobs.signals import SignalInbox
from phalanx.jobs.view import View
from phalanx.launch.orphans import adopt_orphans, end_children, own_children
from phalanx.launch.zygote_client import ZygoteClient

if TYPE_CHECKING:
    from phalanx.jobs.other_hosts import OtherHosts

_FILES_PER_RANK, _OTHER_FILES = 7, 200


class RefusedError(InternalError):
    """The process that ranks are forked from can't serve the job, and has printed why."""


class ZygoteOutput:
    """The output of the process that ranks are forked from: warnings, or why it did not start."""

    def __init__(self, descriptor: int, view: View) -> None:
        self.descriptor = descriptor
        self._view = view
        self._splitter = LineSplitter()

    def read(self) -> bool:
        """Show the available output; return whether more may come."""
        data = os.read(self.descriptor, 1 << 16)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self._view.say(line.decode(errors="replace"))
        return bool(data)

    def drain(self) -> None:
        """Show the rest of the output after that process has ended."""
        while self.read():
            pass


@dataclass
class Host:
    """What the launcher keeps for all attempts.

    Attributes:
        view: Where output goes.
        inbox: Signals to the launcher.
        logs: The log files, if the user wants them.
        kept: Files for what the terminal does not show, if the user wants no logs.
        record: The job's record for other programs.
        zygote: The process that ranks are forked from.
        zygote_output: Its output.
        run_id: The unique name of the job.
        open_files: How many files a rank may open.
        own: The children that this process had before.
        others: The other hosts of the job; None if there is only this one.
    """

    view: View
    inbox: SignalInbox
    logs: Logs | None
    kept: KeptOutput
    record: JobRecord
    zygote: ZygoteClient
    zygote_output: ZygoteOutput
    run_id: str
    open_files: int
    own: frozenset[int]
    others: OtherHosts | None = None

    def check_refusal(self) -> None:
        """Check how a zygote that did not become ready has ended.

        Raises:
            RefusedError: It ended because it can't serve the job.
        """
        if self.zygote.exit_code() == REFUSED_EXIT_CODE:
            raise RefusedError("virtual GPUs can't be set up")

    def reap_ranks(self) -> None:
        """End all processes that are left of ranks whose zygote has ended."""
        end_children(keep=self.own | {self.zygote.pid})


@contextlib.contextmanager
def open_host(job: Job, view: View, logs: Logs | None, kept: KeptOutput) -> Iterator[Host]:
    """Start what ranks need; at the end, end all processes that are left of them.

    Raises:
        UsageError: The ranks need more open files than this user may have.
    """
    zygote, reader = take_zygote(job.environment)
    with contextlib.ExitStack() as cleanup:
        own = frozenset(own_children()) - {zygote.pid}
        cleanup.callback(end_children, own)
        cleanup.callback(os.close, reader)
        inbox = cleanup.enter_context(SignalInbox())
        let_signals_in()
        cleanup.callback(lambda: zygote.close(at_once=not zygote.is_ready))
        open_files = _allow_files(job.num_ranks, zygote.pid)
        adopt_orphans()
        others = None
        if job.hosts is not None:
            from phalanx.jobs.other_hosts import join_hosts  # only jobs on several hosts need it

            say = functools.partial(_say, view)
            others = cleanup.enter_context(join_hosts(job, job.hosts, inbox.fileno(), say))
        record = JobRecord(job.name, job.program.command, job.num_ranks)
        cleanup.callback(record.close)
        yield Host(
            view=view,
            inbox=inbox,
            logs=logs,
            kept=kept,
            record=record,
            zygote=zygote,
            zygote_output=ZygoteOutput(reader, view),
            run_id=str(uuid.uuid4()),
            open_files=open_files,
            own=own | ({others.agent_pid} if others is not None else set()),
            others=others,
        )


def _say(view: View, text: str) -> None:
    view.say(f"phalanx run: {text}")


def _allow_files(num_ranks: int, zygote: int) -> int:
    """Raise the limit of open files for all pipes, here and in the zygote; return the earlier limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks * _FILES_PER_RANK + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"{num_ranks} ranks need {needed} open files and the limit is {hard}; raise it (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and needed > soft:
        for pid in (0, zygote):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (needed, hard))
    return soft

"""Run a job: its attempts, and what is printed before and after them."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import InternalError, PhalanxError, RankFailedError, SharedMemoryError
from phalanx.jobs.early_zygote import fill_standard_streams
from phalanx.jobs.host import Host, RefusedError, open_host
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult
from phalanx.jobs.kept_output import KeptOutput
from phalanx.jobs.logs import Logs
from phalanx.jobs.loop import OutputLoop
from phalanx.jobs.no_job import NoJobError
from phalanx.jobs.plain_view import PlainView
from phalanx.jobs.view import View
from phalanx.jobs.virtual_gpus import describe_virtual_gpus
from phalanx.scarcity import in_words

if TYPE_CHECKING:
    from phalanx.engine import GroupSegment
    from phalanx.jobs.other_hosts import OtherHosts
    from phalanx.launch.hosts.start import JobStart

_WRONG_OPTIONS = 2


def run_job(job: Job) -> int:
    """Run a job to its end and return the exit code of `phalanx run`.

    Raises:
        UsageError: Logs can't be written, or there are too many ranks for this user's limits.
    """
    began = time.monotonic()
    fill_standard_streams()
    with contextlib.ExitStack() as cleanup:
        view = _make_view(job)
        cleanup.callback(view.close)
        logs = None
        if job.log_folder is not None:
            # The numbers of the ranks are not known yet if there are several hosts.
            numbers = range(job.num_ranks) if job.hosts is None else ()
            logs = Logs(job.log_folder, numbers, warn=lambda text: _say(view, text))
            cleanup.callback(logs.close)
        kept = KeptOutput()
        cleanup.callback(kept.close)
        try:
            with open_host(job, view, logs, kept) as host:
                outcome = _attempt_until_done(job, host, began)
        except RefusedError:
            return _WRONG_OPTIONS
        except NoJobError as error:
            _say(view, str(error))
            return error.exit_code
        except (InternalError, SharedMemoryError, RankFailedError) as error:
            _say(view, str(error))
            return 1
        except OSError as error:  # an error of the launcher itself, not of a rank
            _say(view, str(in_words(error, "the launcher can't go on").strerror))
            return 1
        _tell(job, outcome, view, kept.folder, time.monotonic() - began)
        if job.trace_folder is not None:
            _write_timeline(job.trace_folder, view)
    return outcome.exit_code


def _make_view(job: Job) -> View:
    if not job.is_live:
        return PlainView(job.num_ranks)
    from phalanx.jobs.live_view import LiveView

    return LiveView(job.num_ranks, job.name)


def _attempt_until_done(job: Job, host: Host, began: float) -> JobResult:
    # Import this only now: the zygote has been started by now, and imports torch meanwhile.
    from phalanx.jobs.attempt import Attempt
    from phalanx.jobs.summary import summarise_attempt
    from phalanx.launch.world import open_world

    for note in (job.note, describe_virtual_gpus(job.environment, job.num_ranks)):
        if note:
            _say(host.view, note)
    deadline = None if job.timeout_s is None else began + job.timeout_s
    for num_restarts in range(job.max_restarts + 1):
        with open_world(job.num_ranks) as world:
            if host.others is None:
                outcome = Attempt(job, host, world, deadline).run(num_restarts)
            else:
                outcome = _attempt_with_others(job, host, world, deadline, host.others, num_restarts)
        is_final = outcome.verdict is not None and not outcome.verdict.may_restart
        if outcome.kind != "failed" or num_restarts == job.max_restarts or is_final:
            break
        logs = _name_logs(job, outcome, host.kept.folder)
        for line in summarise_attempt(job, outcome, num_restarts + 1, logs):
            host.view.say(line)
    return outcome


def _attempt_with_others(
    job: Job, host: Host, world: GroupSegment, deadline: float | None, others: OtherHosts, num_restarts: int
) -> JobResult:
    from phalanx.jobs.joint_attempt import JointAttempt  # only jobs on several hosts need it

    start = _meet_others(job, host, others, num_restarts)
    return JointAttempt(job, host, world, deadline, others, start).run(num_restarts)


def _meet_others(job: Job, host: Host, others: OtherHosts, attempt: int) -> JobStart:
    """Wait until all hosts are ready for an attempt.

    Raises:
        NoJobError: There will be no job, or no further attempt, on this host.
    """
    loop = OutputLoop(host.view, None)
    try:
        loop.on(others.fileno(), others.read)
        loop.on(host.inbox.fileno(), lambda: None)
        if attempt:
            others.tell_ready()
        start = others.await_start(attempt, loop, host.inbox.read)
    finally:
        loop.close()
    hosts = start.hosts
    if attempt == 0:
        host.view.number_ranks(hosts.first_rank, hosts.num_ranks)
        host.record.name_host(hosts.first_rank, f"host {hosts.number} of {hosts.num_hosts}")
        if host.logs is not None:
            host.logs.open(range(hosts.first_rank, hosts.first_rank + job.num_ranks))
        names = ", ".join(hosts.title(number) for number in range(hosts.num_hosts))
        _say(host.view, f"this is host {hosts.number} of {hosts.num_hosts}: {names}")
    return start


def _tell(job: Job, outcome: JobResult, view: View, kept: Path | None, elapsed_s: float) -> None:
    """Print how the job ended; print nothing if it succeeded and there is no table."""
    from phalanx.jobs.summary import summarise

    if outcome.signal is signal.SIGPIPE:  # the reader of the output is gone
        return
    if outcome.kind != "done":
        for line in summarise(job, outcome, [*_name_logs(job, outcome, kept), *_write_record(outcome)]):
            view.say(line)
    elif view.is_watching:
        _say(view, f"{job.num_ranks} ranks done in {elapsed_s:.1f} s")


def _name_logs(job: Job, outcome: JobResult, kept: Path | None) -> list[str]:
    """Say where the output is that the terminal does not show."""
    folder = job.log_folder or kept
    if folder is None or not any(rank.note is not None and rank.note.traceback for rank in outcome.ranks):
        return []
    return [f"  logs        {folder}/rank-*.err: all tracebacks, in full"]


def _write_record(outcome: JobResult) -> list[str]:
    """Write a flight record of a job that failed; say where it is, or why there is none."""
    if outcome.seen is None:
        return []
    from phalanx.diagnosis.record_folder import write_record
    from phalanx.launch.private_folders import NoFolderError, open_records
    from phalanx.settings import record_folder

    try:
        path = write_record(outcome.seen, open_records(record_folder()))
    except NoFolderError as error:
        return [f"phalanx run: no flight record can be written: {error}"]
    except PhalanxError as error:
        first, *more = str(error).splitlines()
        return [f"phalanx run: {first}", *more]
    return [f"  record      phalanx diagnose {path}"]


def _write_timeline(folder: Path, view: View) -> None:
    from phalanx.timeline import write_timeline

    try:
        written = write_timeline(folder)
    except PhalanxError as error:
        _say(view, f"no timeline: {error}")
    else:
        _say(view, f"timeline: {written.page}")


def _say(view: View, text: str) -> None:
    view.say(f"phalanx run: {text}")

"""`phalanx run` from its first to its last word: attempts, and what they come to."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from phalanx.errors import InternalError, PhalanxError, SharedMemoryError
from phalanx.jobs.attempt import Attempt, Outcome
from phalanx.jobs.host import Host, open_host
from phalanx.jobs.job import Job
from phalanx.jobs.logs import Logs
from phalanx.jobs.plain_view import PlainView
from phalanx.jobs.summary import describe_failure, describe_others, first_culprit
from phalanx.jobs.view import View

TIMED_OUT_EXIT_CODE = 124  # as timeout(1)


def run_job(job: Job) -> int:
    """Run a job to its end and return the exit code of `phalanx run`.

    Raises:
        UsageError: Logs can't be written, or there are too many ranks for this user's limits.
    """
    view = _make_view(job)
    began = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(view.close)
        logs = None
        if job.log_folder is not None:
            logs = Logs(job.log_folder, job.num_ranks, warn=lambda text: _say(view, text))
            cleanup.callback(logs.close)
        with open_host(job, view, logs) as host:
            try:
                outcome = _attempt_until_done(job, host, began)
            except (InternalError, SharedMemoryError) as error:
                _say(view, str(error))
                return 1
        code = _exit_code(outcome)
        _tell(job, outcome, code, view, time.monotonic() - began)
        if job.trace_folder is not None:
            _write_timeline(job.trace_folder, view)
    return code


def _make_view(job: Job) -> View:
    if not job.is_live:
        return PlainView(job.num_ranks)
    from phalanx.jobs.live_view import LiveView

    return LiveView(job.num_ranks, job.name)


def _attempt_until_done(job: Job, host: Host, began: float) -> Outcome:
    deadline = None if job.timeout_s is None else began + job.timeout_s
    for num_restarts in range(job.max_restarts + 1):
        outcome = Attempt(job, host, deadline).run(num_restarts)
        if outcome.kind != "failed" or num_restarts == job.max_restarts:
            break
        what = f"{describe_failure(outcome.ranks)}; starting all again ({num_restarts + 1} of {job.max_restarts})"
        _say(host.view, what)
    return outcome


def _exit_code(outcome: Outcome) -> int:
    if outcome.kind == "timeout":
        return TIMED_OUT_EXIT_CODE
    if outcome.signal is not None:
        return 128 + outcome.signal
    if outcome.kind == "lost":
        return 128 + signal.SIGKILL
    culprit = first_culprit(outcome.ranks)
    return 0 if culprit is None else culprit.exit_code or 1


def _tell(job: Job, outcome: Outcome, code: int, view: View, elapsed_s: float) -> None:
    """Say how it ended: nothing when all is well and nobody watches."""
    if outcome.kind == "done":
        if view.is_watching:
            _say(view, f"{job.num_ranks} ranks done in {elapsed_s:.1f} s")
        return
    if outcome.signal is signal.SIGPIPE:
        return
    _say(view, _headline(job, outcome))
    for line in describe_others(outcome.ranks):
        view.say(line)
    view.say(f"  exit code   {code}")


def _headline(job: Job, outcome: Outcome) -> str:
    if outcome.kind == "timeout":
        return f"ended after {job.timeout_s:.3g} s"
    if outcome.signal is not None:
        return f"ended by {outcome.signal.name}"
    if outcome.kind == "lost":
        return "the process that ranks are forked from was killed, and all ranks with it"
    return describe_failure(outcome.ranks)


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

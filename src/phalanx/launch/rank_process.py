"""What a rank's process does from fork to exit: put itself in order, run the function, report, end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from phalanx.launch.context import LaunchContext, mark_failed, set_process_context, tell_peers
from phalanx.launch.exceptions import describe_exception
from phalanx.launch.rendezvous import NOWHERE, Rendezvous
from phalanx.launch.sending import pack, pack_exception
from phalanx.settings import replace_environment, set_placement

_PR_SET_PDEATHSIG = 1
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class Report:
    """How a rank's function ended: a pickled result, or an exception."""

    result: bytes | None = None
    exception: bytes | None = None
    description: str = ""
    traceback: str = ""


def run_rank(rank: int, job: Job, descriptors: list[int], zygote: int) -> NoReturn:
    """Be rank `rank`; `descriptors` are segment, standard streams, and the pipe for the report. Never returns."""
    die_with_parent(zygote)
    with contextlib.suppress(OSError):  # the zygote does the same
        os.setpgid(0, 0)  # Ctrl-C goes to the caller alone, which ends the ranks in good order
    code = FAILED_EXIT_CODE
    try:
        segment, stdin, stdout, stderr, pipe = descriptors
        try:
            become_rank(job, (stdin, stdout, stderr))
            set_placement(rank, job.num_ranks, *job.rendezvous)
            set_process_context(LaunchContext(rank, job.num_ranks, segment, False, job.meeting, job.rendezvous.store))
        except Exception as error:
            report = describe_failure(error)
        else:
            report = _run(job)
        code = 0 if report.exception is None else FAILED_EXIT_CODE
        flush_streams()
        with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "wb") as stream:  # the caller may have given up
            pickle.dump(report, stream)
        atexit._run_exitfuncs()
        threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else FAILED_EXIT_CODE
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(code)


@dataclass(frozen=True)
class Job:
    """What a caller asks the zygote for.

    Attributes:
        num_ranks: How many processes to fork.
        payload: What they shall do; for run_rank the function and its arguments, pickled by cloudpickle.
        environment: Variables for the ranks.
        folder: Working directory.
        path: Python's module search path.
        arguments: What sys.argv shall be.
        meeting: Name of the world's meeting place.
        num_threads: Threads torch may use in each rank.
        entry: What a forked process calls with its rank, the job, its descriptors and the zygote's process id.
        rendezvous: Where torch's own backends meet, should ranks want them.
        num_shared: How many of the job's descriptors are for all ranks; the others are dealt out evenly, in rank order.
    """

    num_ranks: int
    payload: bytes
    environment: dict[str, str]
    folder: str
    path: list[str]
    arguments: list[str]
    meeting: str
    num_threads: int
    entry: Callable[[int, Job, list[int], int], None] = run_rank
    rendezvous: Rendezvous = NOWHERE
    num_shared: int = 4


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent dies; for a parent that runs one thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(FAILED_EXIT_CODE)


def become_rank(job: Job, streams: tuple[int, int, int]) -> None:
    """Give this process the streams, variables, folder, search path and arguments of a job."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whole lines: ranks write to the same place
            stream.reconfigure(line_buffering=True, write_through=False)
    replace_environment(job.environment)
    os.chdir(job.folder)
    sys.path[:] = job.path
    sys.argv[:] = job.arguments
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(job.num_threads)


def _run(job: Job) -> Report:
    try:
        function, args, kwargs = pickle.loads(job.payload)
        return Report(result=pack(function(*args, **kwargs)))
    except SystemExit as request:
        if request.code in (None, 0):
            return Report(result=pack(None))
        return _report_failure(request)
    except BaseException as error:
        return _report_failure(error)


def _report_failure(error: BaseException) -> Report:
    mark_failed(error)  # peers shall hear why, not see this rank leave
    report = describe_failure(error)
    tell_peers(report.description)
    return report


def describe_failure(error: BaseException) -> Report:
    """Pack an exception so that the caller of spawn() can raise it."""
    text = "".join(traceback.format_exception(error))
    description = describe_exception(error)
    return Report(exception=pack_exception(error), description=description, traceback=text)


def flush_streams() -> None:
    """Write out what was printed, as far as it can be."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

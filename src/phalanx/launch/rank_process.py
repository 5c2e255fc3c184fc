"""What a rank's process does from fork to exit: it sets itself up, runs the function, reports and ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.stacks import answer_in_children_too
from phalanx.diagnosis.tracebacks import format_error, is_from_inside
from phalanx.launch.connection import Connection
from phalanx.launch.context import Placement, loading, mark_failed, set_process_context, tell_peers
from phalanx.launch.disagreement import Disagreement, read_disagreement
from phalanx.launch.exceptions import describe_exception, find_consequence, find_mismatch
from phalanx.launch.rank_devices import set_up_devices
from phalanx.launch.rendezvous import NOWHERE, Rendezvous
from phalanx.launch.sending import pack, pack_exception
from phalanx.settings import full_trace, replace_environment, set_placement

_PR_SET_PDEATHSIG = 1
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class Report:
    """How a rank's function ended: a pickled result, or an exception."""

    result: bytes | None = None
    exception: bytes | None = None
    description: str = ""
    traceback: str = ""
    is_consequence: bool = False  # it failed only because another rank had failed
    disagreement: Disagreement | None = None  # what it knows of a mismatch because of which it failed


def run_rank(rank: int, request: StartRequest, descriptors: list[int], zygote: int) -> NoReturn:
    """Run rank `rank` here; `descriptors` are the segment, standard streams, the connection to the caller, and more.

    The function finds the connection and the other descriptors in its context. Never returns.
    """
    live_as_rank(zygote, lambda: _report_to_caller(rank, request, descriptors))


def live_as_rank(parent: int, main: Callable[[], None]) -> NoReturn:
    """Run a rank in this process, which has just been forked: call `main`, then end the process."""
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(parent)
        with contextlib.suppress(OSError):  # the parent does the same; the first call wins
            os.setpgid(0, 0)  # Ctrl-C reaches only the launcher, which ends the ranks
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED_EXIT_CODE
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(code)


def _report_to_caller(rank: int, request: StartRequest, descriptors: list[int]) -> None:
    segment, stdin, stdout, stderr, caller, *more = descriptors
    connection = Connection(socket.socket(fileno=caller))
    try:
        become_rank(request, (stdin, stdout, stderr))
        set_placement(rank, request.num_ranks, *request.rendezvous)
        context = request.placement(rank).context(segment)
        context.started_by = "spawn"
        context.own.update(connection=connection, descriptors=more)
        set_process_context(context)
        set_up_devices(request.own_type_devices)
    except Exception as error:
        report = describe_failure(error)
    else:
        report = _run(request)
    flush_streams()
    with contextlib.suppress(ConnectionError):  # the caller may have given up
        connection.send(report)
    connection.close()
    atexit._run_exitfuncs()
    threading._shutdown()  # type: ignore[attr-defined]
    if report.exception is not None:
        sys.exit(FAILED_EXIT_CODE)


@dataclass(frozen=True)
class StartRequest:
    """A description of the ranks that a caller wants from the zygote.

    Attributes:
        num_ranks: How many processes to fork.
        payload: What they have to do; for run_rank the function and its arguments, pickled by cloudpickle.
        environment: Variables for the ranks.
        folder: Working directory.
        path: Python's module search path.
        arguments: The value of sys.argv.
        meeting: Name of the world's meeting place.
        num_threads: Threads torch may use in each rank.
        entry: What a forked process calls with its rank, this request, its descriptors and the zygote's process id.
        rendezvous: Where torch's own backends meet, if ranks use them.
        num_shared: How many of its descriptors are for all ranks. Each rank gets an equal part of the rest, in order.
        own_type_devices: The arguments of virtual_devices() for virtual devices of their own type, if ranks have some.
    """

    num_ranks: int
    payload: bytes
    environment: dict[str, str]
    folder: str
    path: list[str]
    arguments: list[str]
    meeting: str
    num_threads: int
    entry: Callable[[int, StartRequest, list[int], int], None] = run_rank
    rendezvous: Rendezvous = NOWHERE
    num_shared: int = 4
    own_type_devices: Mapping[str, Any] = field(default_factory=dict)

    def placement(self, rank: int) -> Placement:
        """Return the placement of a rank."""
        return Placement(rank, self.num_ranks, self.meeting, self.rendezvous)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent dies. The parent must have only one thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(FAILED_EXIT_CODE)


def become_rank(request: StartRequest, streams: tuple[int, int, int]) -> None:
    """Give this process the streams, variables, folder, search path and arguments of a request."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # write whole lines, because ranks share the stream
            stream.reconfigure(line_buffering=True, write_through=False)
    replace_environment(request.environment)
    os.chdir(request.folder)
    sys.path[:] = request.path
    sys.argv[:] = request.arguments
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(request.num_threads)
    answer_in_children_too()


def _run(request: StartRequest) -> Report:
    try:
        with loading():
            function, args, kwargs = pickle.loads(request.payload)
        return Report(result=pack(function(*args, **kwargs)))
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return Report(result=pack(None))
        return _report_failure(leaving)
    except BaseException as error:
        return _report_failure(error)


def _report_failure(error: BaseException) -> Report:
    mark_failed(error)  # so that peers get the reason, and not just a rank that left
    report = describe_failure(error)
    tell_peers(report.description)
    return report


def describe_failure(error: BaseException) -> Report:
    """Pack an exception so that the caller of spawn() can raise it."""
    return Report(
        exception=pack_exception(see_through(error)),
        description=describe_exception(error),
        traceback=_format_traceback(error),
        is_consequence=find_consequence(error) is not None,
        disagreement=read_disagreement(find_mismatch(error)),
    )


def _format_traceback(error: BaseException) -> str:
    """Write its traceback; nothing if all calls are phalanx's own, and its text says what to do."""
    is_full = full_trace()
    return "" if is_from_inside(error) and not is_full else format_error(error, is_full=is_full)


def flush_streams() -> None:
    """Flush the output streams, as far as that is possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

"""Run the program on a rank of a job as `python train.py` would, with torch already imported."""

from __future__ import annotations

import atexit
import bdb
import contextlib
import ctypes
import dataclasses
import gc
import inspect
import io
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from phalanx.errors import BuildError, PhalanxError, UsageError
from phalanx.jobs.early_zygote import REFUSED_EXIT_CODE
from phalanx.jobs.main_module import run_main, without_own_frames
from phalanx.jobs.notes import describe_end
from phalanx.jobs.program import Program
from phalanx.jobs.signals import TAKEN_SIGNALS
from phalanx.launch import zygote
from phalanx.launch.context import mark_failed, set_process_context, tell_peers
from phalanx.launch.exceptions import describe_exception
from phalanx.launch.rank_process import StartRequest, become_rank, die_with_parent, flush_streams
from phalanx.real_gpus.advice import advise
from phalanx.real_gpus.discovery import has_opened_cuda
from phalanx.settings import gpu_memory, hides_gpus, local_rank, virtual_gpus

_USE_BREAKPOINT = (
    "  do       call breakpoint() or phalanx.breakpoint(rank=...), which stop on the terminal; pdb.set_trace() reads "
    "the standard input of the rank, which is not the terminal"
)
_INTERRUPTED = -signal.SIGINT  # as Python does on Ctrl-C, so that a shell sees the signal


@dataclass(frozen=True)
class RankTask:
    """What the launcher sends to all ranks.

    Attributes:
        program: The program to run.
        variables: The environment variables of each rank, in addition to those of the job.
        open_files: How many files a rank may open: the limit before the launcher raised its own.
        is_quiet: Whether the launcher decides what the terminal shows of uncaught exceptions.
    """

    program: Program
    variables: list[dict[str, str]]
    open_files: int
    is_quiet: bool = False


def be_zygote(descriptor: int) -> None:
    """Run the process that the ranks of a job are forked from."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN_SIGNALS)  # start_early() has blocked them
    try:
        zygote.main(descriptor, _prepare)
    except BaseException as error:  # `import torch` wraps what the set-up of virtual GPUs raises
        refusal = _find_refusal(error)
        if refusal is None:
            raise
        print(f"phalanx run: {refusal}", file=sys.stderr, flush=True)
        os._exit(REFUSED_EXIT_CODE)


def _find_refusal(error: BaseException | None) -> PhalanxError | None:
    while error is not None and not isinstance(error, (UsageError, BuildError)):
        error = error.__cause__
    return error


def _prepare() -> None:
    """Set up breakpoint() once for all ranks, and virtual GPUs if the user wants them. Ranks inherit both.

    `import torch` has already done this, unless torch's loading of extensions is turned off.
    """
    if virtual_gpus():
        from phalanx.autoload import set_up_from_environment
        from phalanx.virtual_gpus.set_up import active

        if active() is None:
            set_up_from_environment()
    from phalanx.groups.debugger import use_for_builtin  # imports torch, which the launcher must not

    use_for_builtin()
    check_forkable()


def check_forkable(files: Path = Path("/proc/self/fd")) -> None:
    """Check that ranks that are forked from this process can use GPUs.

    Args:
        files: The open files of this process.

    Raises:
        UsageError: CUDA is initialised here, and its GPUs are not hidden from ranks.
    """
    if not hides_gpus() and not virtual_gpus() and has_opened_cuda(files):
        raise UsageError(
            "`import torch` has initialised CUDA here, and ranks, which are forked from here, could not use a GPU\n"
            "  do       find the extension of torch, .pth file or sitecustomize that uses CUDA when it is imported, or "
            "give --gpus none if ranks use no GPU"
        )


def run_script_rank(rank: int, request: StartRequest, descriptors: list[int], parent: int) -> NoReturn:
    """Run a rank of a job. `descriptors`: the segment, standard streams and the pipe for its failure. Never returns."""
    die_with_parent(parent)
    status = 1
    try:
        os.setpgid(0, 0)  # only the launcher gets Ctrl-C, and it ends the ranks
        task: RankTask = pickle.loads(request.payload)
        segment, stdin, stdout, stderr, failure = descriptors
        variables = {**request.environment, **task.variables[rank]}
        become_rank(dataclasses.replace(request, environment=variables, path=sys.path[:]), (stdin, stdout, stderr))
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        _forget_the_zygote(task)
        set_process_context(request.placement(rank).context(segment))
        _limit_gpu_memory()
        status = _run(task.program, _Teller(failure, is_quiet=task.is_quiet), request.num_ranks)
    except BaseException:
        traceback.print_exc()
    _finish(status)


def _limit_gpu_memory() -> None:
    """Limit the GPU memory of this rank, when it first uses a GPU."""
    if gpu_memory() and not virtual_gpus():
        from phalanx.real_gpus.limits import use_gpu
        from phalanx.real_gpus.memory_shares import read_share

        use_gpu(local_rank(), read_share(gpu_memory(), "PHALANX_GPU_MEMORY"), is_current=False)


class _Teller:
    """Tells the launcher of a failure of this rank; it does nothing in processes forked from the rank."""

    def __init__(self, descriptor: int, *, is_quiet: bool) -> None:
        self._descriptor = descriptor
        self._rank_process = os.getpid()
        self._pipe = _file_of(descriptor)
        self._stderr = _file_of(2)
        self._is_quiet = is_quiet

    def take_stderr(self) -> None:
        """Send what this process still writes to stderr through the pipe, unless the program has redirected stderr."""
        if self._is_quiet and self._can_tell() and self._stderr == _file_of(2):
            flush_streams()
            os.dup2(self._descriptor, 2)

    def tell(self, error: BaseException, exit_code: int) -> None:
        """Send the note."""
        flush_streams()
        if not self._can_tell():
            return
        note = memoryview(describe_end(error, exit_code).encode())
        with contextlib.suppress(OSError):  # the launcher is gone
            while note:
                note = note[os.write(self._descriptor, note) :]
        os.close(self._descriptor)

    def _can_tell(self) -> bool:
        """Tell whether this is the rank, and its program has neither closed the pipe nor used its number for a file."""
        return os.getpid() == self._rank_process and self._pipe is not None and self._pipe == _file_of(self._descriptor)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return what identifies the file behind a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _forget_the_zygote(task: RankTask) -> None:
    """Reset state that this process has inherited from the zygote."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (task.open_files, hard))
    program = task.program
    sys.orig_argv[:] = [sys.executable, *program.command[1:]]
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # otherwise all ranks would draw the same numbers


def _run(program: Program, teller: _Teller, num_ranks: int) -> int:
    """Run the program and return its exit code, or the negative number of a signal."""
    usual_hook = sys.excepthook
    try:
        run_main(program)
    except SystemExit as request:
        status = _exit_code(request)
        if status != 0:
            _fail(request, status, teller)
        return status
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, another rank may end before this one gets the signal
        is_interrupt = isinstance(error, KeyboardInterrupt)
        advise(error, num_ranks)
        if isinstance(error, bdb.BdbQuit):
            error.add_note(_USE_BREAKPOINT)
        if _hook_below_torchs() is usual_hook:
            teller.take_stderr()  # a hook of the program may wait for a person, who must see what it prints
        _show(error)
        _fail(error, 128 + signal.SIGINT if is_interrupt else 1, teller)
        return _INTERRUPTED if is_interrupt else 1
    return 0


def _hook_below_torchs() -> Any:
    """Return sys.excepthook, or what it was before init_process_group put torch's own on top of it."""
    hook: Any = sys.excepthook
    while getattr(hook, "__name__", "") == "_distributed_excepthook":
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook")
    return hook


def _fail(error: BaseException, status: int, teller: _Teller) -> None:
    error.__traceback__ = without_own_frames(error.__traceback__)
    mark_failed(error)  # peers must learn why, and not only see that this rank leaves
    tell_peers(describe_exception(error))
    teller.tell(error, status)


def _show(error: BaseException) -> None:
    trace = error.__traceback__ = without_own_frames(error.__traceback__)
    if isinstance(error, SyntaxError) and trace is not None and trace.tb_frame.f_code.co_filename.startswith("<frozen"):
        trace = error.__traceback__ = None
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        traceback.print_exc()
        traceback.print_exception(error)


def _exit_code(request: SystemExit) -> int:
    code = request.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def _finish(status: int) -> NoReturn:
    """End as Python does, but without destroying every module, which takes a third of a second with torch."""
    for step in (threading._shutdown, atexit._run_exitfuncs, flush_streams, _close_files):  # type: ignore[attr-defined]
        try:
            step()
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
    ctypes.CDLL(None).fflush(None)  # the output of C code
    if status == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _close_files() -> None:
    """Close the files that the program has left open, so that nothing it has written is lost."""
    files = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
    # Close outer files first: the buffer of a text file goes through the files below it.
    files.sort(key=lambda file: (not isinstance(file, io.TextIOBase), type(file).__module__ == "_io"))
    for file in files:
        with contextlib.suppress(Exception):
            file.close()

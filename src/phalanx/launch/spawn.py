"""Run a function on several ranks, and return every rank's result or raise the exception of the rank that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from phalanx.diagnosis.tracebacks import users_part
from phalanx.engine import MAX_RANKS, usable_cores
from phalanx.errors import UsageError
from phalanx.launch.context import current_context
from phalanx.launch.outcome import is_for_user
from phalanx.launch.processes import Limits, run_processes
from phalanx.launch.rank_devices import check_threads, read_rank_gpus
from phalanx.launch.threads import run_threads
from phalanx.launch.world import name_meeting, open_world
from phalanx.settings import full_trace, read_settings


def spawn(  # noqa: PLR0913
    function: Callable[..., Any],
    *,
    ranks: int,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    kind: Literal["process", "thread"] = "process",
    timeout_s: float | None = None,
    tolerate_losses: bool = False,
    virtual_gpus: int | None = None,
    virtual_gpu: str | None = None,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on every rank; inside it, `phalanx.connect()` gives the group.

    Ranks are forked from a process that has imported torch and runs one thread, so they start in milliseconds. The
    first call starts that process. cloudpickle sends the function: lambdas, closures and functions of `__main__` work.

    Args:
        function: What to run.
        ranks: How many ranks.
        args: Positional arguments, the same for every rank.
        kwargs: Keyword arguments, the same for every rank.
        kind: Ranks as processes, or as threads of this process.
        timeout_s: If the ranks take longer, end them and raise. The default is no limit.
        tolerate_losses: Let the others continue when a process dies; its result is then the RankFailedError itself.
        virtual_gpus: How many virtual GPUs every rank sees, with phalanx in NCCL's place; 0 for none. The default is
            the virtual devices of this process, or else what PHALANX_VIRTUAL_GPUS says. Threads share the devices of
            this process, which spawn() does not change: it must have set up that many.
        virtual_gpu: What those claim to be, such as "h100". The default is PHALANX_VIRTUAL_GPU, or else "plain".

    Returns:
        The results, in rank order.

    Raises:
        UsageError: An argument is not possible.
        RankFailedError: A rank was killed or ended early, or its process could not be started.
        OSError: The machine has no more descriptors or processes for this one.
        OperationTimeoutError: The ranks were not done in time.
        Exception: What a rank raised, with that rank's traceback as its cause.
    """
    try:
        _check(function, ranks, kind, timeout_s)
        gpus = read_rank_gpus(virtual_gpus, virtual_gpu, "spawn")
        settings = read_settings()
        task = (function, tuple(args), dict(kwargs or {}))
        with open_world(ranks) as segment:
            if kind == "thread":
                check_threads(gpus, "spawn")
                return run_threads(task, ranks, segment, name_meeting(), timeout_s, settings.grace_s)
            limits = Limits(timeout_s, settings.grace_s, tolerate_losses)
            num_threads = max(1, usable_cores() // ranks)
            return run_processes(
                task, ranks, segment, meeting=name_meeting(), num_threads=num_threads, limits=limits, gpus=gpus
            )
    except BaseException as error:
        if not full_trace() and is_for_user(error):
            is_stop = isinstance(error, KeyboardInterrupt)
            error.__traceback__ = None if is_stop else users_part(error.__traceback__)
        raise  # without an argument, it does not put this call into the traceback again


def _check(function: object, ranks: object, kind: object, timeout_s: object) -> None:
    context = current_context()
    if context is not None and context.is_loading:
        raise UsageError(
            f"spawn: rank {context.rank} is importing the module of its function, and that module calls spawn() again\n"
            '  do       put the call of spawn() below `if __name__ == "__main__":`, or into a function'
        )
    if not callable(function):
        raise UsageError(f"spawn: the function must be callable, not {type(function).__name__}")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MAX_RANKS:
        raise UsageError(f"spawn: ranks is {ranks!r}; give a whole number from 1 to {MAX_RANKS}")
    if kind not in ("process", "thread"):
        raise UsageError(f'spawn: kind is {kind!r}; give "process" or "thread"')
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        raise UsageError(f"spawn: timeout_s is {timeout_s!r}; give a positive number of seconds")

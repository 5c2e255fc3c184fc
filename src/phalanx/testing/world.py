"""Ranks to use by hand, outside pytest: in a script, a notebook, or another test framework.

    with phalanx.testing.ranks(4) as world:
        losses = world.run(train, learning_rate=0.1)

    with phalanx.testing.ranks(4, gpus="virtual") as world:  # each rank sees 4 virtual GPUs, and NCCL is phalanx
        losses = world.run(train_on_gpus)

Ranks are forked from a separate process, so it does not matter what this process has initialised.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, Literal

from phalanx.engine import MAX_RANKS
from phalanx.errors import UsageError
from phalanx.launch.connection import Connection
from phalanx.launch.context import current_context
from phalanx.launch.rank_devices import RankGpus, check_threads
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.sending import pack
from phalanx.launch.zygote_client import shared_zygote
from phalanx.testing.crew import Crew
from phalanx.testing.crew_starts import start_crew
from phalanx.testing.ending import Ending
from phalanx.testing.rank_gpus import read_gpu_spec, reset_gpus
from phalanx.testing.rank_report import RankReport, report_failure
from phalanx.testing.thread_output import ThreadOutput
from phalanx.testing.thread_ranks import run_threaded
from phalanx.testing.verdict import judge
from phalanx.testing.warm_ranks import WarmRanks, serve

_DEFAULT_TIMEOUT_S = 600.0


class RemoteTraceback(Exception):
    """The failures of all ranks, shown as the cause of the exception that World.run() raises."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class World:
    """Some ranks, and a way to run functions on them. Not for several threads.

    Attributes:
        size: How many ranks there are.
        kind: "pool" keeps them between runs, "process" has fresh ones for every run, "thread" uses threads.
    """

    def __init__(self, size: int, *, kind: str, timeout_s: float, gpus: RankGpus | None = None) -> None:
        self.size = size
        self.kind = kind
        self._timeout_s = timeout_s
        self._gpus = gpus
        self._warm = WarmRanks(size, self._start)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call the function on every rank; inside it `phalanx.connect()` gives a fresh group.

        Returns:
            The results, in rank order.

        Raises:
            UsageError: The function or its arguments can't be sent.
            Exception: What a rank raised, with the failures of all ranks as its cause.
        """
        if self.kind == "thread":
            return self._run_threads(function, args, kwargs)
        try:
            task = pack((function, args, kwargs))
        except Exception as error:
            raise UsageError(f"the function or its arguments can't be sent to the ranks: {error}") from error
        endings = self._warm.run(task, timeout_s=self._timeout_s)
        if self.kind == "process":
            self.close()
        _show_output(endings)
        return self._results(endings)

    def close(self) -> None:
        """End the ranks; run() starts new ones."""
        self._warm.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Crew:
        return start_crew(self.size, _serve, shared_zygote(), redirect=True, gpus=self._gpus)

    def _run_threads(self, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        values: dict[int, Any] = {}

        def run(_: ThreadOutput) -> RankReport:
            context = current_context()
            assert context is not None
            try:
                values[context.rank] = function(*args, **kwargs)
            except BaseException as error:
                return report_failure(error)
            return RankReport("passed")

        with open_rendezvous() as rendezvous:
            endings = run_threaded(run, self.size, timeout_s=self._timeout_s, redirect=True, rendezvous=rendezvous)
        _show_output(endings)
        self._results(endings)
        return [values.get(rank) for rank in range(self.size)]

    def _results(self, endings: list[Ending]) -> list[Any]:
        verdict = judge(endings, self._timeout_s)
        if verdict.outcome == "failed":
            first = verdict.failures[0].endings[0]
            shown = first.report.shown if first.report is not None else first.stacks
            error = verdict.error()
            error.add_note(verdict.summary())
            raise error from RemoteTraceback(f"{verdict.summary()}\n{shown or ''}")
        return [
            None if ending.report is None or ending.report.result is None else pickle.loads(ending.report.result)
            for ending in endings
        ]


def ranks(
    size: int,
    *,
    kind: Literal["pool", "process", "thread"] = "pool",
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    gpus: str | None = None,
    races: Literal["off", "warn", "raise"] | None = None,
) -> World:
    """Make a world of ranks; use it with `with`, or close() it.

    Args:
        size: How many ranks.
        kind: "pool" keeps them between runs, "process" has fresh ones for every run, "thread" uses threads.
        timeout_s: How long one run may take.
        gpus: "virtual" gives every rank as many virtual GPUs as there are ranks, with phalanx in NCCL's place;
            "virtual:8" is another number, and "virtual:8:h100" says what they claim to be. The default is what
            this process has set up. Threads share those, so this process must have set up what you ask for.
        races: What happens to races on virtual GPUs: "off", "warn" or "raise". The default is PHALANX_RACES.

    Raises:
        UsageError: An argument is not possible.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_RANKS:
        raise UsageError(f"ranks({size!r}): give a whole number from 1 to {MAX_RANKS}")
    if kind not in ("pool", "process", "thread"):
        raise UsageError(f'ranks: kind is {kind!r}; give "pool", "process" or "thread"')
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise UsageError(f"ranks: timeout_s is {timeout_s!r}; give a positive number of seconds")
    wanted = _read_gpus(size, gpus, races)
    if kind == "thread":
        check_threads(wanted, "ranks")
    return World(size, kind=kind, timeout_s=float(timeout_s), gpus=wanted)


def _read_gpus(size: int, gpus: object, races: object) -> RankGpus | None:
    if gpus is not None:
        return read_gpu_spec(gpus, races, size, "ranks")
    if races is not None:
        raise UsageError('ranks: races is for virtual GPUs; add gpus="virtual"')
    return None


def _serve(connection: Connection) -> None:
    serve(connection, _prepare)


def _prepare(task: bytes, _: Connection) -> Callable[[], RankReport]:
    function, args, kwargs = pickle.loads(task)

    def run() -> RankReport:
        try:
            reset_gpus()
            return RankReport("passed", result=pack(function(*args, **kwargs)))
        except BaseException as error:
            return report_failure(error)

    return run


def _show_output(endings: list[Ending]) -> None:
    """Print the output of the ranks to the caller's streams: in a notebook, under the cell."""
    for ending in endings:
        for text, stream in ((ending.out, sys.stdout), (ending.err, sys.stderr)):
            for line in text.splitlines():
                print(f"[rank {ending.rank}] {line}", file=stream)

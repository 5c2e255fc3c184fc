"""Jobs to look at: ranks that a thread of this process starts, until the test lets them go on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

import phalanx
from phalanx.diagnosis.job_list import RunningJob, choose_job
from phalanx.diagnosis.observation import Observation, observe
from phalanx.diagnosis.report import render
from phalanx.errors import UsageError
from tests.leftovers import wait_until
from tests.run_ranks import Kind

LIMIT_S = 60


class StartedJob:
    """Ranks under way. `gate` is a file that they wait for."""

    def __init__(
        self, kind: Kind, ranks: int, function: Callable[..., Any], gate: Path, *args: Any, tolerate_losses: bool
    ) -> None:
        # By value: a rank that imported the test module would import pytest with it.
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        self.gate = gate
        self._tolerate_losses = tolerate_losses
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(kind, ranks, function, gate, *args))
        self._thread.start()

    def _run(self, kind: Kind, ranks: int, function: Callable[..., Any], *args: Any) -> None:
        try:
            self.results = phalanx.spawn(
                function,
                ranks=ranks,
                kind=kind,
                args=args,
                timeout_s=LIMIT_S,
                tolerate_losses=self._tolerate_losses,
            )
        except Exception as error:
            self.error = error

    def find(self) -> RunningJob:
        return choose_job(str(os.getpid()))

    def look(self) -> Observation:
        job = self.find()
        return observe(sorted(job.pids), job.record)

    def wait_for(self, *texts: str | re.Pattern[str]) -> str:
        """Look until the report has all these texts, and finds all these patterns."""
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            with contextlib.suppress(UsageError):  # it has not started
                shown = render(self.look())
            return all(text in shown if isinstance(text, str) else text.search(shown) for text in texts)

        assert wait_until(is_shown, LIMIT_S / 2), f"not shown: {texts}\n{shown}"
        return shown

    def pids(self) -> list[int]:
        """Return the processes of the ranks of its first group."""
        found: list[int] = []

        def have_all_joined() -> bool:
            found[:] = [row.pid for row in self.look().groups[0].rows]
            return all(found)

        assert wait_until(have_all_joined, LIMIT_S / 2)
        return found

    def go_on(self) -> list[Any]:
        """Let the ranks end, and return what they returned."""
        self.gate.touch()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.results

    def end(self) -> None:
        """Kill the ranks that are still there."""
        self.gate.touch()
        self._thread.join(0.5)
        if self._thread.is_alive():
            with contextlib.suppress(UsageError):
                for pid in set(self.pids()) - {0, os.getpid()}:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                        os.kill(pid, signal.SIGKILL)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def started(
    ranks: int,
    function: Callable[..., Any],
    folder: Path,
    *args: Any,
    kind: Kind = "process",
    tolerate_losses: bool = False,
) -> Iterator[StartedJob]:
    """Start ranks that call function(gate, *args), and end them whatever happens."""
    job = StartedJob(kind, ranks, function, folder / "gate", *args, tolerate_losses=tolerate_losses)
    try:
        yield job
    finally:
        job.end()


@contextlib.contextmanager
def started_program(
    program: str, *arguments: str, module: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a script in a process of its own, and end it whatever happens; a file "gate" beside it lets it go on."""
    command = [sys.executable, *(["-m", module] if module else []), *arguments, program]
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        Path(program).with_name("gate").touch()
        # Ranks are children of a process that dies with its caller.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)


def diagnose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command."""
    return subprocess.run(
        [sys.executable, "-m", "phalanx.cli", "diagnose", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

"""Launchers of several hosts of a job, all on this machine, which meet at a port of the loopback interface."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.jobs.launching import COMMAND

LIMIT_S = 120.0
TOKEN = "the token of these tests"


class Launcher:
    """`phalanx run` as one host of a job. Its output goes to a file, so that nobody has to read it."""

    def __init__(self, arguments: Sequence[object], output: Path, **options: Any) -> None:
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [*COMMAND, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PHALANX_JOB_TOKEN": TOKEN},
                **options,
            )

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    @property
    def own_lines(self) -> list[str]:
        """The lines that do not come from ranks."""
        return [line for line in self.text.splitlines() if not re.match(r"\[ *\d+\] ", line)]

    def await_text(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed something."""
        deadline = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None or re.search(pattern, self.text), self.text
            time.sleep(0.02)
        return found

    def end(self) -> int:
        """Wait until it has ended; return its exit code."""
        return self.process.wait(LIMIT_S)


@contextlib.contextmanager
def job(folder: Path, program: str, num_hosts: int = 2) -> Iterator[Callable[..., Launcher]]:
    """Yield a function that starts the launcher of another host; all launchers are ended in any case."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(program))
    with socket.socket() as claim:
        claim.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{claim.getsockname()[1]}"
    launchers: list[Launcher] = []

    def start(*options: object, endpoint: str = place, num_ranks: int = 2) -> Launcher:
        where = ["--nnodes", num_hosts, "--rdzv-endpoint", endpoint, "-n", num_ranks]
        output = folder / f"host{len(launchers)}.txt"
        launchers.append(Launcher([*where, *options, path], output, cwd=folder))
        return launchers[-1]

    try:
        yield start
    finally:
        for launcher in launchers:
            if launcher.process.poll() is None:
                launcher.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launcher.process.wait(20)
            launcher.process.kill()
            launcher.process.wait()

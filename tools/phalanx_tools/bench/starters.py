"""How the ranks of a contender are started on this machine: by spawn(), or by a command such as mpiexec."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from phalanx.engine import usable_cores
from phalanx.launch.spawn import spawn
from phalanx_tools.bench.mpi_environments import mpi_command
from phalanx_tools.bench.teams import Starter, Team
from phalanx_tools.bench.worker_torch import serve

_END_S = 30
WORKER_MPI = str(Path(__file__).with_name("worker_mpi.py"))


def local_team(contender: str, num_ranks: int) -> Team:
    """Return a team on this machine.

    Raises:
        OSError: It can't be made.
    """
    if contender in ("openmpi", "mpich"):
        command = [*mpi_command(contender, num_ranks, usable_cores()), WORKER_MPI]
        starter: Starter = CommandStarter([command])
    else:
        starter = _SpawnStarter(contender, num_ranks)
    return Team(contender, num_ranks, starter)


class CommandStarter:
    """Starts ranks by commands, which get the address as their last word."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe would have to be read)

    def start(self, address: str) -> None:
        """Start the commands."""
        for command in self._commands:
            process = subprocess.Popen(
                [*command, address], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._output
            )
            self._processes.append(process)

    def failure(self) -> str | None:
        """Return what the commands wrote if one of them has ended."""
        if all(process.poll() is None for process in self._processes):
            return None
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def end(self) -> None:
        """Wait for the commands."""
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _SpawnStarter:
    def __init__(self, contender: str, num_ranks: int) -> None:
        self._contender, self._num_ranks = contender, num_ranks
        self._folder = tempfile.TemporaryDirectory()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def start(self, address: str) -> None:
        self._thread = threading.Thread(target=self._spawn, args=(address,), daemon=True)
        self._thread.start()

    def _spawn(self, address: str) -> None:
        store = str(Path(self._folder.name) / "store")
        try:
            spawn(serve, ranks=self._num_ranks, args=(self._contender, address, f"file://{store}"))
        except Exception as error:
            self._failure = str(error)

    def failure(self) -> str | None:
        return self._failure

    def end(self) -> None:
        if self._thread is not None:
            self._thread.join(_END_S)
        self._folder.cleanup()

"""Run a program on ranks of all hosts of a bed, with `phalanx run` on each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests import leftovers
from tests.hosts.bed import Bed, Host

ROOT = Path(__file__).parents[2]
_RUN = [sys.executable, "-m", "phalanx", "run"]


@dataclass
class Launcher:
    """A launcher on a host, and what it writes."""

    host: Host
    process: subprocess.Popen[str]
    file: Path

    @property
    def output(self) -> str:
        """All that it and its ranks have written so far."""
        return self.file.read_text(errors="replace")


def phalanx_run(host: Host, num_hosts: int, num_ranks: int, port: int = 29500) -> list[str]:
    """Return the command that starts the ranks of a host, up to the options of the test."""
    where = ["--nnodes", str(num_hosts), "--rdzv-endpoint", f"host0:{port}", "--node-rank", str(host.number)]
    return [*_RUN, *where, "-n", str(num_ranks)]


@dataclass
class HostsJob:
    """A job over all hosts of a bed. At the end of the block, the launchers are killed.

    A host without ranks is not started yet: see start().
    """

    bed: Bed
    program: Sequence[str]
    ranks: Sequence[int] = (2, 2)
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: Callable[[Host, int, int], list[str]] = phalanx_run
    launchers: list[Launcher] = field(default_factory=list)

    def __enter__(self) -> HostsJob:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-hosts-job-")
        for host, num_ranks in zip(self.bed, self.ranks, strict=True):
            if num_ranks:
                self.start(host, num_ranks)
        return self

    def start(self, host: Host, num_ranks: int) -> Launcher:
        """Start the launcher of a host."""
        file = Path(self._folder.name) / f"{host.name}-{len(self.launchers)}"
        own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "PHALANX_JOB_TOKEN": "of the tests"}
        environment = os.environ | own | self.environment
        with file.open("w") as output:
            process = host.start(
                *self.command(host, len(self.bed), num_ranks), *self.options, *self.program,
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        self.launchers.append(Launcher(host, process, file))
        return self.launchers[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for launcher in self.launchers:
            launcher.process.kill()
            launcher.process.wait()
            if error is not None:
                error.add_note(f"--- {launcher.host.name}:\n{launcher.output}")
        self._folder.cleanup()

    def wait_for(self, files: Sequence[Path], timeout_s: float = 300) -> None:
        """Wait until ranks have written these files; raise if a launcher ends before."""

        def has_ended() -> bool:
            return any(launcher.process.poll() is not None for launcher in self.launchers)

        leftovers.wait_until(lambda: has_ended() or all(file.exists() for file in files), timeout_s)
        missing = [file.name for file in files if not file.exists()]
        assert not missing, f"{missing}: {[launcher.output for launcher in self.launchers]}"

    def wait(self, timeout_s: float) -> list[int]:
        """Wait until all launchers have ended and return their exit codes.

        Raises:
            subprocess.TimeoutExpired: One of them goes on.
        """
        deadline = time.monotonic() + timeout_s
        return [launcher.process.wait(max(0.0, deadline - time.monotonic())) for launcher in self.launchers]

    def assert_nothing_left(self, timeout_s: float = 10) -> None:
        """Check that no process is left on any host."""
        for host in self.bed:
            if Path(f"/proc/{host.init}").exists():
                assert leftovers.wait_until(lambda host=host: not host.processes(), timeout_s), (  # type: ignore[misc]
                    host.run("ps", "-ef")
                )


def run_on_hosts(
    bed: Bed, *program: str, ranks: Sequence[int] = (2, 2), options: Sequence[str] = (), timeout_s: float = 120
) -> str:
    """Run a program to its end on ranks of all hosts, and return what all of it wrote."""
    with HostsJob(bed, program, ranks, options) as job:
        assert job.wait(timeout_s) == [0] * len(bed), [launcher.output for launcher in job.launchers]
        return "".join(launcher.output for launcher in job.launchers)

"""Run cells of the matrix on several hosts: each cell is an attempt of one long job, which is started again after it.

So launchers, and the processes that ranks are forked from, are started once, and a cell takes about a second.

As a program, this is a rank: over_hosts.py FOLDER. It waits for the cell of its attempt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from phalanx.settings import job_attempt
from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.doors import enter
from phalanx_tools.conformance.faults.faults import find_fault
from phalanx_tools.conformance.faults.notes import read_fault, read_notes
from phalanx_tools.conformance.faults.operations import NUM_RANKS, find_operation
from phalanx_tools.conformance.faults.program import play
from phalanx_tools.hosts.bed import Bed

LAYOUT = (2, 2)  # the culprit is the first rank of a host, its partner the last of another
_START_LIMIT_S = 300.0  # on a busy machine, launchers and ranks may need long to import torch
_CELL_LIMIT_S = 60.0
_GRACE_S = "8"  # on a busy machine a survivor may need longer than usual until it has written its note
_END_S = 10.0
_PORT = 29500
_LOOK_S = 0.02
_GO_ON = 7  # the exit code of ranks on which all went well, so that there is another attempt


class JobsOverHosts:
    """Jobs on the hosts of a bed, one after the other; there is a new one only if the last has ended.

    Args:
        bed: The hosts.
        layout: How many ranks each has, NUM_RANKS in all.
    """

    def __init__(self, bed: Bed, layout: Sequence[int] = LAYOUT) -> None:
        assert sum(layout) == NUM_RANKS
        self._bed = bed
        self._layout = layout
        self._job: _Job | None = None

    def __enter__(self) -> JobsOverHosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def run_cell(self, cell: Cell) -> Run:
        """Run a cell on ranks of its own."""
        if self._job is None or not self._job.is_running():
            self._end()
            self._job = _Job(self._bed, self._layout)
        if not self._job.begin(cell):
            self._end()
            return Run({}, None)
        if not self._job.await_end():
            self._job.kill()
        return self._job.run

    def _end(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None


class _Job:
    """A launcher on each host."""

    def __init__(self, bed: Bed, layout: Sequence[int]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-faults-")
        self._attempt = -1
        place = ["--nnodes", str(len(bed)), "--rdzv-endpoint", f"{bed[0].name}:{_PORT}"]
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "PHALANX_JOB_TOKEN": "of the fault matrix",
        }
        self._launchers = [
            host.start(
                sys.executable, "-m", "phalanx", "run", *place, "--node-rank", str(host.number), "-n", str(num_ranks),
                "--grace", _GRACE_S, "--restart", "100000", __file__, self._folder.name,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            )
            for host, num_ranks in zip(bed, layout, strict=True)
        ]  # fmt: skip

    @property
    def run(self) -> Run:
        """What the ranks of the last cell have written down."""
        folder = self._place(self._attempt)
        return Run(read_notes(folder), read_fault(folder))

    def is_running(self) -> bool:
        """Tell whether all launchers run."""
        return all(launcher.poll() is None for launcher in self._launchers)

    def begin(self, cell: Cell) -> bool:
        """Give the ranks of the next attempt a cell; return False if they do not come."""
        self._attempt += 1
        if not self._have_come(self._attempt, _START_LIMIT_S):
            return False
        key = [cell.operation.door, cell.operation.name, cell.form, cell.fault.name]
        unfinished = self._place(self._attempt) / "cell.part"
        unfinished.write_text(json.dumps(key))
        unfinished.rename(unfinished.with_name("cell"))
        return True

    def await_end(self) -> bool:
        """Wait for the end of the attempt; return False if that takes too long, or there will be no other."""
        return self._have_come(self._attempt + 1, _CELL_LIMIT_S)

    def kill(self) -> None:
        """End the launchers, and with them the ranks."""
        for launcher in self._launchers:
            launcher.kill()
        for launcher in self._launchers:
            launcher.wait(_END_S)

    def close(self) -> None:
        """End the job, and forget what its ranks have written."""
        self.kill()
        self._folder.cleanup()

    def _place(self, attempt: int) -> Path:
        return Path(self._folder.name, str(attempt))

    def _have_come(self, attempt: int, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.is_running():
            if len(list(self._place(attempt).glob("*.here"))) == NUM_RANKS:
                return True
            time.sleep(_LOOK_S)
        return False


def _be_rank(name: str) -> None:
    folder = Path(name, job_attempt())
    folder.mkdir(exist_ok=True)
    (folder / f"{os.environ['RANK']}.here").touch()
    while not (folder / "cell").exists():
        time.sleep(_LOOK_S)
    door, operation, form, fault = json.loads((folder / "cell").read_text())
    play(Cell(find_operation(door, operation), form, find_fault(fault)), enter(door, None), folder)
    sys.exit(_GO_ON)


if __name__ == "__main__":
    _be_rank(sys.argv[1])

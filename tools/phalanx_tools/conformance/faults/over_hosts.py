"""Run a cell of the matrix on two hosts: the culprit is the first rank of one, its partner the last of the other.

As a program, this is a rank: over_hosts.py DOOR OPERATION FORM FAULT FOLDER.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.doors import enter
from phalanx_tools.conformance.faults.faults import find_fault
from phalanx_tools.conformance.faults.notes import read_fault, read_notes
from phalanx_tools.conformance.faults.operations import NUM_RANKS, find_operation
from phalanx_tools.conformance.faults.program import play
from phalanx_tools.hosts.bed import Bed

NUM_HOSTS = 2
_CELL_LIMIT_S = 60.0  # with the start of launchers and ranks
_GRACE_S = "8"  # on a busy machine a survivor may need longer than usual until it has written its note
_END_S = 10.0
_PORT = 29500


def run_cell_over_hosts(cell: Cell, bed: Bed) -> Run:
    """Run a cell on ranks of their own, with a launcher on each host."""
    with tempfile.TemporaryDirectory(prefix="phalanx-faults-") as name:
        words = [cell.operation.door, cell.operation.name, cell.form, cell.fault.name, name]
        launchers = [_launch(bed, number, words) for number in range(len(bed))]
        deadline = time.monotonic() + _CELL_LIMIT_S
        for launcher in launchers:
            try:
                launcher.wait(max(_END_S, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        return Run(read_notes(Path(name)), read_fault(Path(name)))


def _launch(bed: Bed, number: int, words: list[str]) -> subprocess.Popen[str]:
    options = ["--nnodes", str(len(bed)), "--rdzv-endpoint", f"{bed[0].name}:{_PORT}", "--node-rank", str(number)]
    options += ["-n", str(NUM_RANKS // len(bed)), "--grace", _GRACE_S]
    tools = str(Path(__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": tools, "PHALANX_JOB_TOKEN": "of the fault matrix"}
    return bed[number].start(
        sys.executable, "-m", "phalanx", "run", *options, __file__, *words,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip


def _be_rank(door: str, operation: str, form: str, fault: str, folder: str) -> None:
    play(Cell(find_operation(door, operation), form, find_fault(fault)), enter(door, None), Path(folder))


if __name__ == "__main__":
    _be_rank(*sys.argv[1:])

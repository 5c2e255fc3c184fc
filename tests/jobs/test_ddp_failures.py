"""What the terminal shows when ranks fail inside DDP, whose C++ code keeps only the text of an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import environment_without, lines_of, phalanx_run, write_script

pytestmark = pytest.mark.slow

_BEGINNING = """
import os, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("phalanx")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
def step():
    model(torch.ones(2, 4)).sum().backward()
for _ in range(2):  # before the second step, DDP makes its buckets anew
    step()
dist.barrier()
"""
_KILL = """
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
step()
"""
_MISMATCH = """
if rank == 3:
    dist.broadcast(torch.ones(3), 0)
step()
"""


def _script(folder: Path, end: str) -> Path:
    return write_script(folder, _BEGINNING + end)


def test_a_killed_rank_is_told_in_a_few_lines(tmp_path: Path) -> None:
    result = phalanx_run("-n", 8, _script(tmp_path, _KILL))
    assert result.returncode == 137
    lines = result.stderr.splitlines()
    assert len(lines) <= 15
    assert lines[0] == "phalanx run: rank 3 of 8 was killed by SIGKILL (signal 9)"
    assert re.fullmatch(rf"  freed       ranks 0-2, 4-7, in all_reduce #\d+, {tmp_path.name}/program.py:8", lines[3])
    assert lines[-1] == "  exit code   137, of rank 3"


def test_a_mismatch_names_the_odd_rank(tmp_path: Path) -> None:
    result = phalanx_run("-n", 4, _script(tmp_path, _MISMATCH))
    file = f"{tmp_path.name}/program.py"
    lines = result.stderr.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("phalanx run: rank 3 of 4 failed: MismatchError: broadcast #")
    assert lines[1] == f"  here        rank 3 of 4 called broadcast root 0 float32 (3,), {file}:14"
    # On a busy machine, some ranks come only after the mismatch was found.
    assert re.fullmatch(rf"  differs     ranks? [0-2].* called all_reduce sum float32 \(10,\), {file}:8", lines[2])
    assert lines[3] == "  do          call the same operations in the same order on every rank"
    assert re.fullmatch(rf"  freed       ranks 0-2, in all_reduce #\d+, {file}:8", lines[4])
    assert lines[-1] == "  exit code   1, of rank 3"


def test_fewer_steps_on_one_rank_are_told_once_without_the_calls_of_torch(tmp_path: Path) -> None:
    result = phalanx_run("-n", 4, _script(tmp_path, "if rank != 1:\n    step()\n"))
    lines = result.stderr.splitlines()
    end = "phalanx run: rank 1 of 4 has reached the end of its program while ranks 0, 2-3 still waited for it"
    assert lines[0] == end
    assert re.fullmatch(r"  freed       ranks 0, 2-3, in all_reduce #\d+, .*:\d+", lines[3])
    assert "At:" not in result.stderr
    assert "Got the following error" not in result.stderr


def test_full_trace_prints_what_torch_raises(tmp_path: Path) -> None:
    script = _script(tmp_path, _MISMATCH)
    result = phalanx_run("-n", 4, script, env=environment_without(PHALANX_FULL_TRACE="1"))
    assert "At:" in result.stderr
    assert "phalanx run: rank 3 of 4 failed: MismatchError: broadcast #" in result.stderr


def test_a_program_catches_what_torch_raises(tmp_path: Path) -> None:
    script = _script(
        tmp_path,
        """
if rank == 1:
    raise SystemExit(0)
try:
    step()
except RuntimeError as error:
    assert "PeerLeftError: all_reduce #" in str(error)
    print("caught")
""",
    )
    result = phalanx_run("-n", 2, script)
    assert (result.returncode, lines_of(result.stdout, 0)) == (0, ["caught"])

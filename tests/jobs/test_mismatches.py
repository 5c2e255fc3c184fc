"""Which rank is named if ranks make different calls, whichever of them comes first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import phalanx_run, write_script

pytestmark = pytest.mark.slow

# A late rank makes its call when the others have noticed the mismatch. A last rank makes it when all others have come.
# In a broadcast, a rank compares its call with that of the root only, so two ranks are enough to notice a mismatch.
_PROGRAM = """
import sys, time, torch, phalanx
odd, late, last = ([int(number) for number in text.split(",") if number] for text in sys.argv[1:])
group = phalanx.connect()
rank = group.rank
while rank in late and group.fault() is None:
    time.sleep(0.005)
while rank in last and any(row.arrived == 0 for row in group.snapshot() if row.rank != rank):
    time.sleep(0.005)
if rank in odd:
    {odd}
else:
    {usual}
group.barrier()  # the root of a broadcast hears of the mismatch here
"""
_CALLS = {
    "operation": ("group.all_reduce(torch.ones(4))", "group.broadcast(torch.ones(4), 1)"),
    "shape": ("group.broadcast(torch.ones(4), 1)", "group.broadcast(torch.ones(3), 1)"),
    "dtype": ("group.broadcast(torch.ones(4), 1)", "group.broadcast(torch.ones(4).double(), 1)"),
    "root": ("group.broadcast(torch.ones(4), 1)", "group.broadcast(torch.ones(4), 2)"),
}


def _run(folder: Path, field: str, *, odd: str, late: str = "", last: str = "") -> list[str]:
    usual, other = _CALLS[field]
    script = write_script(folder, _PROGRAM.format(usual=usual, odd=other))
    result = phalanx_run("-n", 4, "--grace", 40, script, odd, late, last)
    assert result.returncode == 1
    return result.stderr.splitlines()


@pytest.mark.parametrize(
    ("field", "odd", "late", "last"),
    [
        ("operation", 0, "2,3", ""),
        ("operation", 0, "3", ""),
        ("operation", 0, "", "0"),
        ("operation", 2, "0,3", ""),
        ("shape", 0, "2,3", ""),
        ("shape", 3, "0,2", ""),
        ("shape", 3, "", "3"),
        ("dtype", 2, "0,3", ""),
        ("root", 0, "1,3", ""),
    ],
)
def test_the_odd_rank_is_named_even_if_others_come_late(
    field: str, odd: int, late: str, last: str, tmp_path: Path
) -> None:
    lines = _run(tmp_path, field, odd=str(odd), late=late, last=last)
    assert re.fullmatch(
        rf"phalanx run: rank {odd} of 4 failed: MismatchError: \w+ #1 of group .*: ranks disagree on {field} \(.*\)",
        lines[0],
    )
    assert lines[1].startswith(f"  here        rank {odd} of 4 called ")
    assert lines[2].startswith("  differs     rank")
    assert list(dict.fromkeys(line.split()[0] for line in lines[3:])) == ["do", "freed", "logs", "record", "exit"]
    freed = [line.partition(", in ")[0].split("rank", 1)[1] for line in lines if line.startswith("  freed")]
    assert {number for text in freed for number in _numbers(text)} == {0, 1, 2, 3} - {odd}
    assert lines[-1] == f"  exit code   1, of rank {odd}"


def _numbers(text: str) -> list[int]:
    """Read what rank_list() has written."""
    runs = [run.split("-") for run in text.removeprefix("s").split(",")]
    return [number for run in runs for number in range(int(run[0]), int(run[-1]) + 1)]


def test_two_against_two_are_all_named(tmp_path: Path) -> None:
    lines = _run(tmp_path, "shape", odd="1,2", late="2,3")
    assert re.fullmatch(r"phalanx run: ranks 0-3 of 4 failed: MismatchError: .*: ranks disagree on shape", lines[0])
    texts = {line.split()[0]: line for line in lines[1:]}
    assert list(texts) == ["here", "differs", "unknown", "do", "logs", "record", "exit"]
    assert texts["unknown"] == "  unknown     who is right: no call was made by more than half of the ranks"
    assert texts["exit"] == "  exit code   1, of ranks 0-3"


def test_an_odd_rank_that_has_ended_is_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("phalanx")
        if dist.get_rank() == 0:
            dist.broadcast(torch.ones(4), 0)  # the root does not wait
        else:
            dist.all_reduce(torch.ones(4))
        """,
    )
    lines = phalanx_run("-n", 4, "--grace", 40, script).stderr.splitlines()
    assert lines[0].startswith("phalanx run: ranks 1-3 of 4 failed because of rank 0: MismatchError: all_reduce #1 of ")
    assert re.match(r"  differs     rank 0 \(pid \d+\) called broadcast root 0 ", lines[2])
    assert lines[-1] == "  exit code   1, of ranks 1-3"

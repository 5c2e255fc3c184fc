"""A rank that reaches the end of its program while others still wait for it: the job says so, and blames no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import phalanx_run, write_script

pytestmark = pytest.mark.slow

_OF_TORCH = """
import os, torch
import torch.distributed as dist

dist.init_process_group("phalanx")
dist.all_reduce(torch.ones(1))
if dist.get_rank() != 1:
    dist.barrier()
"""

_IN_A_FUNCTION = """
import phalanx, torch

def main():
    group = phalanx.connect()
    group.all_reduce(torch.ones(1))
    if group.rank != 1:
        group.barrier()

main()
"""


@pytest.mark.parametrize("program", [_OF_TORCH, _IN_A_FUNCTION], ids=["torch", "in a function"])
def test_the_rank_that_has_ended_is_named_and_its_last_call(tmp_path: Path, program: str) -> None:
    script = write_script(tmp_path, program)
    result = phalanx_run("-n", 4, script)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    place = f"{tmp_path.name}/program.py"
    line = program.splitlines().index(next(each for each in program.splitlines() if "all_reduce" in each)) + 1
    end = "phalanx run: rank 1 of 4 has reached the end of its program while ranks 0, 2-3 still waited for it"
    assert lines[:4] == [
        end,
        f"  last        after all_reduce #1, {place}:{line}",
        "  do          let every rank make the same calls before it ends",
        f"  freed       ranks 0, 2-3, in barrier #2, {place}:{line + 2}",
    ]
    assert re.fullmatch(r"  exit code   1, of rank [023]", lines[-1])


def test_ranks_that_wait_get_an_error_that_says_so(tmp_path: Path) -> None:
    result = phalanx_run("-n", 2, "--full-trace", write_script(tmp_path, _OF_TORCH))
    error = r"PeerLeftError: barrier #2 of group \"0\": rank 1 \(pid \d+\) has reached the end of its program\n"
    assert re.search(error, result.stderr)
    assert re.search(r"  left     rank 1 \(pid \d+\) left all_reduce #1 sum float32 \(1,\), ", result.stderr)


def test_all_ranks_that_have_ended_too_early_are_named(tmp_path: Path) -> None:
    script = write_script(tmp_path, _OF_TORCH.replace("!= 1", "== 0"))
    first = phalanx_run("-n", 3, script).stderr.splitlines()[0]
    # On a busy machine, one of them may still be on its way when the first is missed.
    assert re.fullmatch(
        r"phalanx run: ranks? (1-2|1|2) of 3 ha(s|ve) reached the end of .* while rank 0 still .*", first
    )


def test_a_rank_that_ends_before_it_has_joined_is_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, phalanx

        if os.environ["RANK"] == "1":
            raise SystemExit
        phalanx.connect().barrier()
        """,
    )
    result = phalanx_run("-n", 2, script)
    end = "phalanx run: rank 1 of 2 has reached the end of its program while rank 0 still waited for it"
    assert result.stderr.splitlines()[0] == end
    error = phalanx_run("-n", 2, "--full-trace", script).stderr
    assert "has reached the end of its program, and never joined the group" in error
    assert "do       let every rank make the group and the same calls" in error


def test_a_rank_that_closes_its_group_and_goes_on_is_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import phalanx, time

        group = phalanx.connect()
        group.barrier()
        if group.rank == 1:
            group.close()
            time.sleep(600)
        group.barrier()
        """,
    )
    lines = phalanx_run("-n", 2, "--grace", "0.1", script).stderr.splitlines()
    assert lines[0] == "phalanx run: rank 1 of 2 closed the group while rank 0 still waited for it"
    assert "  do          let every rank make the same calls before it closes the group" in lines


def test_a_rank_that_ends_with_os_exit_is_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, phalanx

        group = phalanx.connect()
        group.barrier()
        if group.rank == 1:
            os._exit(0)
        group.barrier()
        """,
    )
    lines = phalanx_run("-n", 2, script).stderr.splitlines()
    assert lines[0] == "phalanx run: rank 1 of 2 ended with exit code 0 while rank 0 still waited for it"
    assert any(line.startswith("  do          look for os._exit()") for line in lines)

"""What programs that a rank starts get from it: the standard streams, and nothing of phalanx's."""

from __future__ import annotations

import subprocess
from typing import Any

import torch

import phalanx
from tests.run_ranks import run_ranks


def _files_of_a_started_program() -> str:
    # As os.system() and libraries in C start programs: with all descriptors that are not closed on exec.
    command = ["ls", "-l", "/proc/self/fd"]
    return subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True).stdout


def _look_from_a_rank() -> tuple[str, int]:
    group: Any = phalanx.connect()
    part = group.split(list(range(group.size)))
    symmetric = group.empty(100)
    for tensor in (torch.ones(3), torch.ones(300_000), symmetric.fill_(1)):
        group.all_reduce(tensor)
    group.all_reduce(torch.ones(3), async_op=True).wait()
    part.barrier()
    files = _files_of_a_started_program()
    group.barrier()  # all are open until here
    return files, files.count("\n")


def test_programs_that_a_rank_starts_get_neither_group_memory_nor_its_pipes() -> None:
    """A daemon that holds the pipe of a rank's report, or a helper of another user that can write group memory."""
    before = _files_of_a_started_program()
    for files, num_files in run_ranks("process", 2, _look_from_a_rank):
        assert "phalanx" not in files, files
        assert num_files <= before.count("\n"), files

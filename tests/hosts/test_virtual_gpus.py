"""Programs for GPUs run on virtual GPUs of several hosts. NCCL is then the stand-in, which is phalanx."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.jobs import run_on_hosts

_PROGRAM = str(Path(__file__).with_name("on_gpus.py"))


@needs_hosts
@pytest.mark.slow
def test_a_program_for_gpus_runs_on_virtual_gpus_of_two_hosts() -> None:
    with hosts(2) as bed:
        for backend in ("cpu:phalanx,cuda:nccl", "phalanx", "nccl"):
            printed = run_on_hosts(bed, _PROGRAM, backend, options=["--virtual-gpus", "2"])
            assert sorted(re.findall(r"rank (\d) of 4 is done", printed)) == ["0", "1", "2", "3"], backend

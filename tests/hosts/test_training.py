"""torch trains over hosts as in one process: DDP, FSDP2, DTensor on a 2-D mesh, pipelines, on 2 hosts x 2 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.bed import needs_hosts
from tests.hosts.running_tests import failures, run_tests

pytestmark = [needs_hosts, pytest.mark.slow]

_RANKS = (2, 2)
_PLAN = {2: [1, 2], 3: [1, 2, 3], 4: [0, 1, 2, 3]}
# Groups of two ranks have them on two hosts: stages of a pipeline send to each other between hosts.
_ALL = ("ddp", "ddp_hooks", "fsdp", "tensor_parallel", "pipelining", "zero", "functional_collectives")


def test_training_over_hosts_gives_what_one_process_gives(tmp_path: Path) -> None:
    results = run_tests(_RANKS, _PLAN, tmp_path, *(f"tests/torch_training/test_{name}.py" for name in _ALL))
    names = {result["test"].partition("::")[0].partition("test_")[2].removesuffix(".py") for result in results}
    assert names == set(_ALL), "every one of them has run"
    assert not failures(results), failures(results)

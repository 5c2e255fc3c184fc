"""torch trains over hosts as in one process: DDP, FSDP2, DTensor on a 2-D mesh, pipelines, on 2 hosts x 2 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.bed import needs_hosts
from tests.hosts.running_tests import failures, run_tests

pytestmark = [needs_hosts, pytest.mark.slow]

_RANKS = (2, 2)
_PLAN = {2: [1, 2], 3: [1, 2, 3], 4: [0, 1, 2, 3]}
_SOME = {
    "test_ddp.py::test_ddp_trains_like_one_process",
    "test_fsdp.py::test_fsdp_trains_like_one_process",
    "test_fsdp.py::test_hsdp_trains_like_one_process",
    "test_tensor_parallel.py::test_every_axis_of_a_mesh_is_a_group_of_its_own",
    "test_tensor_parallel.py::test_tensor_parallel_inside_fsdp_trains_like_one_process",
    "test_pipelining.py::test_an_interleaved_pipeline_of_two_stages_a_rank_trains_like_one_process",
}
_ALL = ("ddp", "ddp_hooks", "fsdp", "tensor_parallel", "pipelining", "zero", "functional_collectives")


def test_training_over_hosts_gives_what_one_process_gives(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    is_whole = request.config.getoption("--over-hosts") == "all"
    names = [f"test_{name}.py" for name in _ALL] if is_whole else sorted(_SOME)
    results = run_tests(_RANKS, _PLAN, tmp_path, *(f"tests/torch_training/{name}" for name in names))
    assert len(results) >= len(names)
    assert not failures(results), failures(results)

"""The tests of tests/contract on groups whose ranks are on several hosts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.jobs import ROOT, HostsJob

pytestmark = [needs_hosts, pytest.mark.slow]

_PROGRAM = str(Path(__file__).with_name("contract_on_ranks.py"))
_LIMIT_S = 550.0

# How many ranks each host has, and for each number of ranks that a test may be for, the ranks that run it.
KINDS: dict[str, tuple[tuple[int, ...], dict[int, list[int]]]] = {
    "hosts 2x2": ((2, 2), {4: [0, 1, 2, 3], 3: [0, 1, 2]}),
    "hosts 2x4": ((4, 4), {8: [*range(8)]}),
    "hosts 3+1+2": ((3, 1, 2), {6: [*range(6)]}),
    "one rank per host": ((1, 1, 1), {3: [0, 1, 2], 2: [0, 2]}),
}
# Of every file, in make test: the rest takes minutes.
_SLICE = (
    "test_all_reduce.py::test_all_reduce_gives_every_rank_the_reduction_of_all_types_and_ops",
    "test_broadcast.py",
    "test_gather_and_scatter.py",
    "test_coalescing.py",
)


def _run(kind: str, folder: Path, *tests: str) -> list[dict[str, Any]]:
    """Run tests and return what became of each."""
    ranks, plan = KINDS[kind]
    result = folder / "result.json"
    # Six processes on two cores: what waits for a peer must not give up early.
    environment = {"PHALANX_TIMEOUT_S": "120"}
    with (
        hosts(len(ranks)) as bed,
        HostsJob(bed, [_PROGRAM, str(result), json.dumps(plan), *tests], ranks, environment=environment) as job,
    ):
        job.wait(_LIMIT_S)
        assert result.exists(), [launcher.output[-3000:] for launcher in job.launchers]
        job.assert_nothing_left()
    results: list[dict[str, Any]] = json.loads(result.read_text())
    return results


def _failures(results: list[dict[str, Any]]) -> str:
    """Describe the tests that failed; the words of one rank are enough."""
    parts = []
    for result in results:
        for rank, words in result["failed"].items():
            parts.append(f"{result['test']}, rank {rank} and {len(result['failed']) - 1} others:\n{words}")
            break
    return f"{len(parts)} of {len(results)} failed\n" + "\n".join(parts) if parts else ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_contract_holds_over_hosts(kind: str, tmp_path: Path) -> None:
    results = _run(kind, tmp_path, *(str(ROOT / "tests/contract" / name) for name in _SLICE))
    assert len(results) > 10
    assert not _failures(results), _failures(results)


@pytest.mark.skipif(not os.environ.get("PHALANX_ALL_OVER_HOSTS"), reason="minutes: make hosts runs it")
@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_holds_over_hosts(kind: str, tmp_path: Path) -> None:
    results = _run(kind, tmp_path, str(ROOT / "tests/contract"))
    assert len(results) > 100
    assert not _failures(results), _failures(results)

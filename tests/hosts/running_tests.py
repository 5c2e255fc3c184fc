"""Run tests of this repository on ranks of several hosts: see tests_on_ranks.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hosts.bed import hosts
from tests.hosts.jobs import ROOT, HostsJob

_PROGRAM = str(Path(__file__).with_name("tests_on_ranks.py"))
_LIMIT_S = 550.0


def run_tests(
    ranks: Sequence[int], plan: dict[int, list[int]], folder: Path, *tests: str, limit_s: float = _LIMIT_S
) -> list[dict[str, Any]]:
    """Run tests and return what became of each.

    Args:
        ranks: How many ranks each host has.
        plan: For each number of ranks that a test may be for, the members.
        folder: For what the ranks write.
        tests: Files of tests, or names in them, from the root of the repository.
        limit_s: How long all of it may take.
    """
    result = folder / "result.json"
    paths = [str(ROOT / test) for test in tests]
    # Six processes on two cores: what waits for a peer must not give up early.
    environment = {"PHALANX_TIMEOUT_S": "120", "OMP_NUM_THREADS": "1"}
    program = [_PROGRAM, str(result), json.dumps(plan), *paths]
    with hosts(len(ranks)) as bed, HostsJob(bed, program, ranks, environment=environment) as job:
        codes = job.wait(limit_s)
        assert set(codes) <= {0, 1}, [launcher.output[-3000:] for launcher in job.launchers]  # 1: tests have failed
        job.assert_nothing_left()
    results: list[dict[str, Any]] = json.loads(result.read_text())
    return results


def failures(results: list[dict[str, Any]]) -> str:
    """Describe the tests that failed; the words of one rank are enough."""
    parts = []
    for result in results:
        for rank, words in list(result["failed"].items())[:1]:
            parts.append(f"{result['test']}, rank {rank} and {len(result['failed']) - 1} others:\n{words}")
    return f"{len(parts)} of {len(results)} failed\n" + "\n".join(parts) if parts else ""

"""The tests of tests/contract on groups whose ranks are on several hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.bed import needs_hosts
from tests.hosts.jobs import ROOT
from tests.hosts.running_tests import failures, run_tests
from tests.hosts.selection import LEFT_OUT, REFUSED

pytestmark = pytest.mark.slow

# How many ranks each host has, and for each number of ranks that a test may be for, the ranks that run it.
KINDS: dict[str, tuple[tuple[int, ...], dict[int, list[int]]]] = {
    "hosts 2x2": ((2, 2), {4: [0, 1, 2, 3], 3: [0, 1, 2]}),
    "hosts 2x2, ranks dealt out cyclically": ((2, 2), {4: [0, 2, 1, 3]}),
    "hosts 2x4": ((4, 4), {8: [*range(8)]}),
    "hosts 3+1+2": ((3, 1, 2), {6: [*range(6)]}),
    "hosts 1+1+1": ((1, 1, 1), {3: [0, 1, 2], 2: [0, 2]}),
    "hosts 1x1": ((1, 1), {2: [0, 1]}),
}
# Some of it, in make test.
_SLICE = (
    "test_all_reduce.py::test_all_reduce_gives_every_rank_the_reduction_of_all_types_and_ops",
    "test_broadcast.py",
    "test_gather_and_scatter.py",
    "test_coalescing.py",
)


@needs_hosts
@pytest.mark.parametrize("kind", ["hosts 3+1+2"])
def test_a_slice_of_the_contract_holds_over_hosts(kind: str, tmp_path: Path) -> None:
    results = run_tests(*KINDS[kind], tmp_path, *(f"tests/contract/{name}" for name in _SLICE))
    assert len(results) > 10
    assert not failures(results), failures(results)


@needs_hosts
@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_holds_over_hosts(kind: str, tmp_path: Path) -> None:
    results = run_tests(*KINDS[kind], tmp_path, "tests/contract")
    assert len(results) > 100
    assert not failures(results), failures(results)


def test_every_test_of_the_contract_runs_over_hosts_or_is_left_out_with_a_reason() -> None:
    jobs = json.dumps([(sum(ranks), plan) for ranks, plan in KINDS.values()])
    command = [sys.executable, "-m", "tests.hosts.selection", jobs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["chosen"]) > 100
    unexplained = [(file, test) for file, test in found["others"] if file not in REFUSED and test not in LEFT_OUT]
    assert not unexplained
    names = {name for pair in found["others"] for name in pair}
    assert {*REFUSED, *LEFT_OUT} <= names, "each reason is for a test that there is"

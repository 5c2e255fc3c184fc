"""The tests of tests/contract on groups whose ranks are on several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.bed import needs_hosts
from tests.hosts.running_tests import failures, run_tests

pytestmark = [needs_hosts, pytest.mark.slow]

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_contract_holds_over_hosts(kind: str, tmp_path: Path) -> None:
    results = run_tests(*KINDS[kind], tmp_path, *(f"tests/contract/{name}" for name in _SLICE))
    assert len(results) > 10
    assert not failures(results), failures(results)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_holds_over_hosts(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--over-hosts") != "all":
        pytest.skip("minutes: make hosts runs it, or --over-hosts all")
    results = run_tests(*KINDS[kind], tmp_path, "tests/contract")
    assert len(results) > 100
    assert not failures(results), failures(results)

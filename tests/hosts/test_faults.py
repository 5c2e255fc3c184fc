"""The fault matrix over hosts: every survivor on every host names the culprit. `./dev faults --hosts` has all cells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from phalanx_tools.conformance.faults.cell import Cell
from phalanx_tools.conformance.faults.faults import find_fault
from phalanx_tools.conformance.faults.matrix import list_cells, run_cells
from phalanx_tools.conformance.faults.operations import find_operation
from phalanx_tools.conformance.faults.over_hosts import JobsOverHosts
from tests.hosts.bed import hosts, needs_hosts

pytestmark = [needs_hosts, pytest.mark.slow]

_PROMPT_S = 10.0  # a busy machine may be late; without the error of a peer it would take 30 s
_SLICE = [
    ("phalanx", "all_reduce", "large", "killed"),
    ("torch", "all_reduce", "small", "raised"),
    ("phalanx", "barrier", "small", "exited"),
    ("phalanx", "broadcast", "small", "stalled"),
    ("phalanx", "all_to_all", "large", "wrong shape"),
    ("phalanx", "gather", "small", "skipped call"),
    ("phalanx", "recv", "large", "stalled"),
    ("phalanx", "send", "large", "wrong shape"),
    ("phalanx", "recv", "small", "extra call"),
    ("torch", "send", "large", "extra call"),
    ("torch", "recv", "small", "exited"),
]


def _check(cells: Sequence[Cell], layout: Sequence[int]) -> None:
    with hosts(len(layout)) as bed, JobsOverHosts(bed, layout) as jobs:
        outcomes = run_cells(cells, lambda outcome, num_done: None, _PROMPT_S, jobs.run_cell)
    assert not [(str(each.cell), each.flaws, each.run.notes) for each in outcomes if each.flaws]


def test_every_survivor_on_every_host_names_the_culprit() -> None:
    _check([Cell(find_operation(door, name), form, find_fault(fault)) for door, name, form, fault in _SLICE], (2, 2))


@pytest.mark.parametrize("layout", [(2, 2), (1, 2, 1), (1, 1, 1, 1)], ids=str)
def test_all_faults_in_a_small_operation_are_named_on_every_host(layout: tuple[int, ...]) -> None:
    _check(list_cells(operations=["all_reduce"], forms=["small"]), layout)

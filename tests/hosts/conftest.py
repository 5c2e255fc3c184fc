"""`make test` runs a slice of the tests over hosts, less than a minute of one core; `make hosts` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_ALL_OF = ("test_bed.py", "test_standing.py")  # nothing here imports torch
_SLICE = (
    "test_every_test_of_the_contract_runs_over_hosts_or_is_left_out_with_a_reason",
    "test_a_slice_of_the_contract_holds_over_hosts[hosts 3+1+2]",
    "test_every_survivor_on_every_host_names_the_culprit",
    "test_a_lost_host_is_named_by_every_rank_of_the_other[phalanx-lost packets]",
    "test_no_host_sends_more_than_it_must[2]",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--over-hosts") == "all":
        return
    for item in items:
        if item.path.parent == _HERE and item.path.name not in _ALL_OF and item.name not in _SLICE:
            item.add_marker(pytest.mark.skip(reason="minutes: make hosts runs it, or --over-hosts all"))

"""Operations over hosts send no more bytes than they must, in whatever order the hosts have their ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.counting import COUNT
from tests.hosts.jobs import run_on_hosts

pytestmark = [needs_hosts, pytest.mark.slow]

_TOLERANCE = 1.02  # headers, acknowledgements, the agents' beats
_TOLERANCE_OF_MANY = 1.1  # if two hosts send to one at the same time, the switch loses packets, which are sent again
_BYTES = 4 * COUNT
_PROGRAM = str(Path(__file__).with_name("counting.py"))


def _least(operation: str, num_hosts: int) -> float:
    """Return what some host must send."""
    others = (num_hosts - 1) / num_hosts
    return {
        "all_reduce": 2 * _BYTES * others,
        "all_gather": _BYTES * others,
        "reduce_scatter": _BYTES * others,
        "broadcast": _BYTES,
        "reduce": _BYTES,
        # Each of its ranks, to the ranks of other hosts.
        "all_to_all": 2 * _BYTES * others,
    }[operation]


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_no_host_sends_more_than_it_must(num_hosts: int, tmp_path: Path) -> None:
    with hosts(num_hosts) as bed:
        run_on_hosts(bed, _PROGRAM, str(tmp_path), ranks=[2] * num_hosts)
    sent = [json.loads((tmp_path / f"{host}.json").read_text()) for host in range(num_hosts)]
    most = {
        (order, operation): max(host[order][operation] for host in sent)
        for order, operations in sent[0].items()
        for operation in operations
    }
    assert len(most) == 12
    too_many = {
        key: f"{count / _least(key[1], num_hosts):.3f} times the least"
        for key, count in most.items()
        if count > _least(key[1], num_hosts) * _TOLERANCE
    }
    assert not too_many

"""Hosts that have addresses of IPv6 only."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.hosts.bed import Host, hosts, needs_hosts
from tests.hosts.jobs import HostsJob
from tests.hosts.starters import torchrun_static

pytestmark = [needs_hosts, pytest.mark.slow]

_ORDINARY = str(Path(__file__).with_name("ordinary.py"))
_RANKS = (2, 2)


def _by_address(host: Host, num_hosts: int, num_ranks: int) -> list[str]:
    where = ["--nnodes", str(num_hosts), "--rdzv-endpoint", "[fd77::1]:29500", "--node-rank", str(host.number)]
    return [sys.executable, "-m", "phalanx", "run", *where, "-n", str(num_ranks)]


@pytest.mark.parametrize("command", [_by_address, torchrun_static])
def test_a_program_runs_on_hosts_with_ipv6_alone(command: object) -> None:
    with hosts(2, is_ipv6=True) as bed, HostsJob(bed, [_ORDINARY], _RANKS, command=command) as job:  # type: ignore[arg-type]
        assert job.wait(120) == [0, 0], [launcher.output for launcher in job.launchers]
        printed = "".join(launcher.output for launcher in job.launchers)
        assert sorted(re.findall(r"rank (\d) of 4 is done", printed)) == ["0", "1", "2", "3"], printed
        job.assert_nothing_left()

"""`./dev hosts`, on a host of a bed: there it meets no standing bed of other people."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leftovers
from tests.hosts.bed import Host, hosts, needs_hosts

pytestmark = [needs_hosts, pytest.mark.slow]

_DEV = str(Path(__file__).parents[2] / "dev")


@pytest.fixture(scope="module")
def outer() -> Iterator[Host]:
    with hosts(1) as bed:
        yield bed[0]


def _dev(outer: Host, *words: str) -> tuple[int, str]:
    with outer.start(_DEV, "hosts", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output, _ = process.communicate(timeout=60)
        return process.returncode, output


def test_hosts_stay_from_one_command_to_the_next_until_they_are_removed(outer: Host) -> None:
    code, shown = _dev(outer, "up", "3", "--rate", "1gbit")
    assert code == 0, shown
    assert [line.split()[:3] for line in shown.splitlines()] == [
        [str(number), f"host{number}", f"10.77.0.{number + 1}"] for number in range(3)
    ]
    assert _dev(outer, "up") == (1, "Error: there are hosts already; remove them with: ./dev hosts down\n")
    assert _dev(outer, "on", "2", "hostname") == (0, "host2\n")
    assert _dev(outer, "on", "1", "sh", "-c", "exit 4") == (4, "")
    assert _dev(outer, "cut", "1") == (0, "")
    assert _dev(outer, "on", "1", "cat", "/sys/class/net/eth0/carrier") == (0, "0\n")
    assert _dev(outer, "mend", "1") == (0, "")
    assert _dev(outer, "on", "1", "cat", "/sys/class/net/eth0/carrier") == (0, "1\n")
    assert _dev(outer, "cut", "7") == (1, "Error: there is no host 7: there are 0 to 2\n")
    assert _dev(outer, "down") == (0, "")
    assert _dev(outer, "list") == (1, "Error: there are no hosts; make some with: ./dev hosts up\n")
    assert leftovers.wait_until(lambda: len(outer.processes()) == 0, 20), outer.run("ps", "-ef")


def test_a_rate_that_is_none_is_refused(outer: Host) -> None:
    code, shown = _dev(outer, "up", "--rate", "fast")
    assert code == 2
    assert "'fast' is not a rate; write 1gbit or 250mbit" in shown

"""A host or its link is lost: every launcher and every rank that is left says which, within 5 s, and nothing is left.

A host is silent after 3 s; what comes on top is the way of the news to the ranks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx_tools.conformance.faults.notes import Note, read_notes
from tests.hosts.bed import Bed, Host, hosts, needs_hosts
from tests.hosts.jobs import HostsJob

pytestmark = [needs_hosts, pytest.mark.slow]

_NAMED_WITHIN_S = 5.0
_ENDED_WITHIN_S = 10.0
_PROGRAM = str(Path(__file__).with_name("endless.py"))
_RANKS = (2, 2)

FAULTS: dict[str, Callable[[Host], None]] = {
    "cut cable": Host.cut,
    "lost packets": Host.lose_packets,
    "power off": Host.power_off,
}
every_fault = pytest.mark.parametrize("fault", FAULTS)
every_door = pytest.mark.parametrize("door", ["phalanx", "torch"])


class _Strike:
    """A job that has begun, whose network is then broken, and how it ended."""

    def __init__(self, bed: Bed, door: str, num_bytes: int, folder: Path, fault: str, target: int) -> None:
        with HostsJob(bed, [_PROGRAM, door, str(num_bytes), str(folder)], _RANKS) as job:
            job.wait_for([folder / f"{rank}.ready" for rank in range(sum(_RANKS))])
            struck_at = time.monotonic()
            FAULTS[fault](bed[target])
            job.wait(_ENDED_WITHIN_S)
            self.ended_s = time.monotonic() - struck_at
            job.assert_nothing_left(max(0.0, _ENDED_WITHIN_S - self.ended_s))
            self.outputs = [launcher.output for launcher in job.launchers]
        self.notes = read_notes(folder)
        self.named_s = {rank: note.moment - struck_at for rank, note in self.notes.items()}

    def check_ranks(self, ranks: range, culprit: int) -> None:
        """Check what these ranks say: that the host of this number is silent, in time."""
        for rank in ranks:
            note = self.notes.get(rank)
            assert note is not None, f"rank {rank} said nothing; launchers: {self.outputs}"
            assert (note.kind, note.verdict) == ("PeerDiedError", "died"), note
            assert re.search(_silent(culprit), first_line(note)), note.text
            assert self.named_s[rank] < _NAMED_WITHIN_S, self.named_s


def first_line(note: Note) -> str:
    return note.text.partition("\n")[0]


def _silent(host: int) -> str:
    first = sum(_RANKS[:host])
    return rf"host {host} \(host{host}, ranks {first}-{first + _RANKS[host] - 1}\) has been silent for 3 s"


@every_fault
@every_door
def test_a_lost_host_is_named_by_every_rank_of_the_other(door: str, fault: str, tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, door, 4096, tmp_path, fault, target=1)
    strike.check_ranks(range(2), culprit=1)
    assert re.search(_silent(1), strike.outputs[0])
    if fault != "power off":  # the ranks of the host that was cut off are alive
        strike.check_ranks(range(2, 4), culprit=0)
        assert re.search(_silent(0), strike.outputs[1])


@every_fault
@every_door
def test_the_lost_host_of_the_store_is_named_by_every_rank_of_the_other(door: str, fault: str, tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, door, 4096, tmp_path, fault, target=0)
    strike.check_ranks(range(2, 4), culprit=0)
    assert re.search(_silent(0), strike.outputs[1])
    if fault != "power off":
        strike.check_ranks(range(2), culprit=1)


@every_fault
def test_a_host_is_lost_in_the_middle_of_a_large_operation(fault: str, tmp_path: Path) -> None:
    with hosts(2, rate="100mbit") as bed:
        strike = _Strike(bed, "phalanx", 64 << 20, tmp_path, fault, target=1)
    strike.check_ranks(range(2), culprit=1)


@every_fault
def test_launchers_of_a_program_that_uses_gloo_name_a_lost_host_and_end(fault: str, tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, "gloo", 4096, tmp_path, fault, target=1)
    assert re.search(_silent(1), strike.outputs[0])

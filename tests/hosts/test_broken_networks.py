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
from tests import leftovers
from tests.hosts.bed import Bed, Host, hosts, needs_hosts
from tests.hosts.jobs import HostsJob

pytestmark = [needs_hosts, pytest.mark.slow]

_NAMED_WITHIN_S = 5.0
_ENDED_WITHIN_S = 10.0
_PROGRAM = str(Path(__file__).with_name("endless.py"))
_RANKS_EACH = 2

FAULTS: dict[str, Callable[[Host], None]] = {
    "cut cable": Host.cut,
    "lost packets": Host.lose_packets,
    "power off": Host.power_off,
}
every_fault = pytest.mark.parametrize("fault", FAULTS)
every_door = pytest.mark.parametrize("door", ["phalanx", "torch"])


class _Strike:
    """A job that has begun, whose network is then broken, and how it ended. What its ranks do is in endless.py."""

    def __init__(self, bed: Bed, what: str, num_bytes: int, folder: Path, fault: str, target: int) -> None:
        ranks = [_RANKS_EACH] * len(bed)
        with HostsJob(bed, [_PROGRAM, what, str(num_bytes), str(folder)], ranks) as job:
            job.wait_for([folder / f"{rank}.ready" for rank in range(sum(ranks))])
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
    first = host * _RANKS_EACH
    return rf"host {host} \(host{host}, ranks {first}-{first + _RANKS_EACH - 1}\) has been silent for 3 s"


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
@pytest.mark.parametrize("target", [0, 1], ids=["host of the store", "other host"])
def test_a_host_is_lost_in_the_middle_of_a_large_operation(target: int, fault: str, tmp_path: Path) -> None:
    with hosts(2, rate="1gbit") as bed:
        strike = _Strike(bed, "phalanx", 64 << 20, tmp_path, fault, target)
    left = 1 - target
    strike.check_ranks(range(2 * left, 2 * left + 2), culprit=target)
    if fault != "power off":
        strike.check_ranks(range(2 * target, 2 * target + 2), culprit=left)


@every_fault
@pytest.mark.parametrize("what", ["phalanx", "split"])
def test_one_of_three_hosts_is_named_by_all_ranks_of_the_others(what: str, fault: str, tmp_path: Path) -> None:
    """Also in a group that has no member on the lost host: the job can't go on, so the launchers end it."""
    with hosts(3) as bed:
        strike = _Strike(bed, what, 4096, tmp_path, fault, target=2)
    strike.check_ranks(range(4), culprit=2)
    for output in strike.outputs[:2]:
        assert re.search(_silent(2), output)


def test_the_lost_host_of_the_store_is_named_on_two_others(tmp_path: Path) -> None:
    with hosts(3) as bed:
        strike = _Strike(bed, "phalanx", 4096, tmp_path, "power off", target=0)
    strike.check_ranks(range(2, 6), culprit=0)


@pytest.mark.parametrize("target", [0, 1], ids=["host of the store", "other host"])
def test_a_job_whose_ranks_call_nothing_ends_too(target: int, tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, "idle", 4096, tmp_path, "lost packets", target)
    assert re.search(_silent(target), strike.outputs[1 - target])
    assert re.search(_silent(1 - target), strike.outputs[target])


def test_a_rank_that_closes_does_not_wait_until_a_lost_host_has_taken_its_messages(tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, "closing", 4096, tmp_path, "lost packets", target=1)
    assert (tmp_path / "closed").exists(), "\n".join(strike.outputs)


def test_ranks_that_wait_for_those_of_a_lost_host_in_connect_name_it(tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, "meeting", 4096, tmp_path, "cut cable", target=1)
    strike.check_ranks(range(2), culprit=1)


def test_a_host_that_is_cut_off_before_all_have_come_is_missing_until_it_is_back(tmp_path: Path) -> None:
    program = [str(Path(__file__).with_name("counting.py")), str(tmp_path)]
    with hosts(3) as bed, HostsJob(bed, program, (1, 1, 0)) as job:
        first = job.launchers[0]
        assert leftovers.wait_until(lambda: "waiting for 1 of 3 hosts" in first.output, 60), first.output
        bed[1].cut()
        assert leftovers.wait_until(lambda: "waiting for 2 of 3 hosts" in first.output, 60), first.output
        bed[1].mend()
        job.start(bed[2], 1)
        assert job.wait(300) == [0, 0, 0], [launcher.output for launcher in job.launchers]


@every_fault
def test_launchers_of_a_program_that_uses_gloo_name_a_lost_host_and_end(fault: str, tmp_path: Path) -> None:
    with hosts(2) as bed:
        strike = _Strike(bed, "gloo", 4096, tmp_path, fault, target=1)
    assert re.search(_silent(1), strike.outputs[0])

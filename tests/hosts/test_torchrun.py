"""torchrun starts an unchanged program on several hosts, and its ranks name a lost host or rank."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx_tools.conformance.faults.notes import Note, read_notes
from tests import leftovers
from tests.hosts.bed import Host, hosts, needs_hosts
from tests.hosts.jobs import HostsJob
from tests.hosts.starters import torchrun_c10d, torchrun_static
from tests.hosts.test_broken_networks import FAULTS, first_line

pytestmark = [needs_hosts, pytest.mark.slow]

_NAMED_WITHIN_S = 30.0  # 3 s of silence and the way of the news; the limit of an operation is 600 s
_NOTHING_LEFT_WITHIN_S = 10.0
_ORDINARY = str(Path(__file__).with_name("ordinary.py"))
_RESTARTED = str(Path(__file__).with_name("restarted.py"))
_LATE = str(Path(__file__).with_name("late.py"))
_ENDLESS = str(Path(__file__).with_name("endless.py"))
_RANKS = (2, 2)


@pytest.mark.parametrize(("command", "token"), [(torchrun_static, "of the tests"), (torchrun_c10d, "")])
def test_torchrun_runs_an_unchanged_program_on_two_hosts(
    command: Callable[[Host, int, int], list[str]], token: str
) -> None:
    environment = {"PHALANX_JOB_TOKEN": token}
    with (
        hosts(2, has_loopback_names=True) as bed,
        HostsJob(bed, [_ORDINARY], _RANKS, environment=environment, command=command) as job,
    ):
        assert job.wait(120) == [0, 0], [launcher.output for launcher in job.launchers]
        printed = "".join(launcher.output for launcher in job.launchers)
        assert sorted(re.findall(r"rank (\d) of 4 is done", printed)) == ["0", "1", "2", "3"]
        job.assert_nothing_left(_NOTHING_LEFT_WITHIN_S)


class _Endless:
    """Ranks that go on for ever under torchrun, until a blow; and what they wrote about it."""

    def __init__(self, folder: Path, blow: Callable[[HostsJob], None], told: range, door: str = "torch") -> None:
        program = [_ENDLESS, door, "4096", str(folder)]
        # torchrun ends the other ranks of a host when it sees that one has failed: let it look later.
        options = ["--monitor-interval", "5"]
        with hosts(2) as bed, HostsJob(bed, program, _RANKS, options, command=torchrun_c10d) as job:
            job.wait_for([folder / f"{rank}.ready" for rank in range(sum(_RANKS))])
            struck_at = time.monotonic()
            blow(job)
            files = [folder / f"{rank}.note" for rank in told]
            leftovers.wait_until(lambda: all(file.exists() for file in files), _NAMED_WITHIN_S)
            self.notes = read_notes(folder)
            assert set(told) <= set(self.notes), [launcher.output for launcher in job.launchers]
            self.named_s = {rank: note.moment - struck_at for rank, note in self.notes.items()}

    def check(self, ranks: range, pattern: str) -> None:
        for rank in ranks:
            note: Note = self.notes[rank]
            assert (note.kind, note.verdict) == ("PeerDiedError", "died"), note
            assert re.search(pattern, first_line(note)), note.text
            assert self.named_s[rank] < _NAMED_WITHIN_S, self.named_s


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("door", ["phalanx", "torch"])
def test_ranks_of_torchrun_name_a_lost_host(door: str, fault: str, tmp_path: Path) -> None:
    strike = _Endless(tmp_path, lambda job: FAULTS[fault](job.bed[1]), range(2), door)
    strike.check(range(2), r"host 1 \(host1, ranks 2-3\) has been silent for 3 s")


@pytest.mark.parametrize("fault", FAULTS)
def test_ranks_of_torchrun_name_the_lost_host_of_rank_0(fault: str, tmp_path: Path) -> None:
    strike = _Endless(tmp_path, lambda job: FAULTS[fault](job.bed[0]), range(2, 4))
    strike.check(range(2, 4), r"host 0 \(host0, ranks 0-1\) has been silent for 3 s")


@pytest.mark.parametrize("victim", [2, 3])  # the first rank of its host, which starts the watcher; and another
def test_ranks_of_torchrun_name_a_killed_rank_of_another_host(victim: int, tmp_path: Path) -> None:
    def kill(job: HostsJob) -> None:
        job.bed[1].run("kill", "-KILL", (tmp_path / f"{victim}.ready").read_text())

    strike = _Endless(tmp_path, kill, range(2))
    strike.check(range(2), rf"rank {victim} (of 4 )?on host 1 \(host1, pid \d+\) has died")


def test_a_watcher_does_not_outlive_the_ranks_of_its_host(tmp_path: Path) -> None:
    def kill_all(job: HostsJob) -> None:
        job.launchers[1].process.kill()  # first: torchrun must not end its ranks gently
        job.bed[1].run("kill", "-KILL", *((tmp_path / f"{rank}.ready").read_text() for rank in (2, 3)))
        assert leftovers.wait_until(lambda: not job.bed[1].processes(), _NOTHING_LEFT_WITHIN_S), job.bed[1].run(
            "ps", "-ef"
        )

    strike = _Endless(tmp_path, kill_all, range(2))
    strike.check(range(2), r"rank [23] (of 4 )?on host 1 \(host1, pid \d+\) has died")


def test_ranks_of_torchrun_name_a_late_rank_of_another_host_and_its_line(tmp_path: Path) -> None:
    with hosts(2) as bed, HostsJob(bed, [_LATE, str(tmp_path)], _RANKS, command=torchrun_static) as job:
        files = [tmp_path / f"{rank}.error" for rank in range(3)]
        job.wait_for(files)
        for file in files:
            text = file.read_text()
            assert text.startswith("OperationTimeoutError: all_reduce #"), text
            assert "rank 3" in text, text
            assert "in read_batch" in text, text


@pytest.mark.parametrize("door", ["phalanx", "torch"])
def test_ranks_that_torchrun_starts_again_find_each_other(door: str) -> None:
    options = ["--max-restarts", "1"]
    with hosts(2) as bed, HostsJob(bed, [_RESTARTED, door], _RANKS, options, command=torchrun_c10d) as job:
        assert job.wait(120) == [0, 0], [launcher.output for launcher in job.launchers]
        printed = "".join(launcher.output for launcher in job.launchers)
        assert sorted(re.findall(r"rank (\d) of 4 is done", printed)) == ["0", "1", "2", "3"], printed
        job.assert_nothing_left(_NOTHING_LEFT_WITHIN_S)

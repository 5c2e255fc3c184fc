"""`phalanx run --nnodes 2`: two launchers on this machine run one job, and end together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.diagnosis.processes import descendants_of
from tests.jobs.hosts.launchers import job

pytestmark = pytest.mark.slow

GLOO = """
    import os, sys, time
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(total)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    print(*(os.environ[name] for name in names), total.tolist(), flush=True)
    dist.barrier()
"""

FAILS = """
    import os, signal, sys, time

    if os.environ["RANK"] == "3":
        {fault}
    time.sleep(100)
"""


def test_an_unmodified_gloo_program_runs_on_all_hosts(tmp_path: Path) -> None:
    with job(tmp_path, GLOO) as start:
        first = start("--node-rank", 0, num_ranks=1)
        second = start("--node-rank", 1, num_ranks=2)
        assert [first.end(), second.end()] == [0, 0], first.text + second.text
        assert "[0] 0 3 0 1 0 2 [3.0, 3.0, 3.0]" in first.text
        assert "[1] 1 3 0 2 1 2 [3.0, 3.0, 3.0]" in second.text
        assert "[2] 2 3 1 2 1 2 [3.0, 3.0, 3.0]" in second.text


def test_no_port_is_open_but_that_of_the_meeting(tmp_path: Path) -> None:
    program = """
        import os, pathlib
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if os.environ["RANK"] == "0":
            namespace = os.readlink("/proc/self/ns/net")
            listening = {row.split()[9]: row.split()[1] for path in ("/proc/net/tcp", "/proc/net/tcp6")
                         for row in pathlib.Path(path).read_text().splitlines()[1:] if row.split()[3] == "0A"}
            own = {os.readlink(each) for each in pathlib.Path("/proc/self/fd").iterdir() if each.is_symlink()}
            print("master port", int(os.environ["MASTER_PORT"]) in {int(place.split(":")[1], 16)
                                                                    for place in listening.values()})
        dist.barrier()
    """
    with job(tmp_path, program) as start:
        first, second = start("--node-rank", 0), start("--node-rank", 1)
        assert [first.end(), second.end()] == [0, 0], first.text + second.text
        assert "[0] master port False" in first.text


@pytest.mark.parametrize(
    ("fault", "exit_code", "words"),
    [
        ("raise ValueError('bad batch')", 1, r"rank 3 of 4 on host 1 \(.*\) failed: ValueError: bad batch"),
        ("os._exit(7)", 7, r"rank 3 of 4 on host 1 \(.*, pid \d+\) ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"rank 3 of 4 on host 1 \(.*, pid \d+\) was killed by SIGKILL"),
    ],
)
def test_all_launchers_name_the_culprit_and_end_with_its_code(
    fault: str, exit_code: int, words: str, tmp_path: Path
) -> None:
    with job(tmp_path, FAILS.format(fault=fault)) as start:
        hosts = [start("--node-rank", 0, "--grace", 0.2), start("--node-rank", 1, "--grace", 0.2)]
        assert [host.end() for host in hosts] == [exit_code] * 2
        told = [host.await_text(f"phalanx run: ({words}.*)")[1] for host in hosts]
        assert told[0] == told[1]
        for host in hosts:
            assert f"exit code   {exit_code}, of rank 3" in host.text
        assert "Traceback" not in hosts[0].text


def test_a_restart_starts_the_ranks_of_all_hosts_again(tmp_path: Path) -> None:
    program = """
        import os
        import torch.distributed as dist

        dist.init_process_group("gloo")
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("attempt", attempt, flush=True)
        if attempt == "0" and os.environ["RANK"] == "3":
            raise ValueError("bad luck")
        dist.barrier()
        print("done", flush=True)
    """
    with job(tmp_path, program) as start:
        hosts = [start("--restart", 1, "--grace", 0.2), start("--restart", 1, "--grace", 0.2)]
        assert [host.end() for host in hosts] == [0, 0], hosts[0].text + hosts[1].text
        for host in hosts:
            assert host.text.count("attempt 1") == 2
            assert host.text.count("done") == 2
            assert "failed: ValueError: bad luck" in host.text
            assert "all ranks start again (1 of 1)" in host.text


def test_a_host_whose_launcher_is_killed_is_named_and_its_ranks_end(tmp_path: Path) -> None:
    program = """
        import time

        print("up", flush=True)
        time.sleep(100)
    """
    with job(tmp_path, program) as start:
        first = start("--node-rank", 0, "--restart", 3, "--grace", 0.2)
        second = start("--node-rank", 1, "--restart", 3)
        second.await_text(r"(?s)up.*up")
        started = descendants_of(second.process.pid, 100)
        os.kill(second.process.pid, signal.SIGKILL)
        assert first.end() == 137
        assert f"its launcher (pid {second.process.pid}) has died" in first.text
        assert "start again" not in first.text
        for pid in started:
            first_look = Path(f"/proc/{pid}/cmdline")
            assert not first_look.exists() or not first_look.read_bytes() or _ends(pid)


def _ends(pid: int) -> bool:
    """Wait for a process that is about to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(20_000))
    finally:
        os.close(descriptor)


def test_an_interrupt_ends_the_job_on_all_hosts(tmp_path: Path) -> None:
    with job(tmp_path, "import time; print('up', flush=True); time.sleep(100)") as start:
        first = start("--node-rank", 0, "--grace", 0.2)
        second = start("--node-rank", 1, "--grace", 0.2)
        for host in (first, second):
            host.await_text(r"(?s)up.*up")
        first.process.send_signal(signal.SIGINT)
        assert [first.end(), second.end()] == [130, 130]
        assert "host 0 (" in second.await_text("phalanx run: .* was ended by SIGINT")[0]


def test_the_time_of_one_host_ends_the_job_on_all(tmp_path: Path) -> None:
    with job(tmp_path, "import time; time.sleep(100)") as start:
        first = start("--node-rank", 0, "--timeout", 5, "--grace", 0.2)
        second = start("--node-rank", 1, "--grace", 0.2)
        assert [first.end(), second.end()] == [124, 124]
        assert "was not done after 5 s" in second.text


def test_a_launcher_whose_ranks_are_done_waits_for_the_others(tmp_path: Path) -> None:
    program = """
        import os, time

        if os.environ["RANK"] == "3":
            time.sleep(4)
            raise ValueError("at last")
    """
    with job(tmp_path, program) as start:
        hosts = [start("--node-rank", 0), start("--node-rank", 1)]
        assert [host.end() for host in hosts] == [1, 1]
        assert "the ranks of this host are done; waiting for those of the other hosts" in hosts[0].text
        assert "failed: ValueError: at last" in hosts[0].text


def test_diagnose_shows_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    program = """
        import time

        def wait_for_godot():
            print("up", flush=True)
            time.sleep(100)

        wait_for_godot()
    """
    with job(tmp_path, program) as start:
        hosts = [start("--node-rank", 0, "--grace", 0.2), start("--node-rank", 1, "--grace", 0.2)]
        for host in hosts:
            host.await_text(r"(?s)up.*up")
        for number, host in enumerate(hosts):
            command = [sys.executable, "-m", "phalanx.cli", "diagnose", "--short", str(host.process.pid)]
            shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
            here, _, there = shown.partition(f"on host {1 - number} (")
            assert f"(host {number} of 2), 2 ranks" in here.splitlines()[0]
            assert f"ranks {2 * number}-{2 * number + 1} are at " in here
            assert f"ranks {2 * (1 - number)}-{2 * (1 - number) + 1} are at " in there
            assert shown.count("in wait_for_godot") >= 4


def test_a_lonely_host_names_what_is_missing_and_can_be_interrupted(tmp_path: Path) -> None:
    with job(tmp_path, "raise SystemExit('it was started')") as start:
        first = start("--node-rank", 0)
        found = first.await_text(r"waiting for 1 of 2 hosts \(--node-rank 1\); here: .*\n +(phalanx run .*)")
        assert "--node-rank 1" in found[1]
        first.process.send_signal(signal.SIGINT)
        assert first.end() == 130
        assert "it was started" not in first.text


def test_the_command_that_is_shown_starts_the_missing_host(tmp_path: Path) -> None:
    with job(tmp_path, "import os; print('rank', os.environ['RANK'])") as start:
        first = start("--node-rank", 0)
        command = first.await_text(r"\n +phalanx run (.*)")[1]
        endpoint = command.split("--rdzv-endpoint ")[1].split()[0]
        second = start(*command.split()[command.split().index("--node-rank") :][:2], endpoint=endpoint)
        assert [first.end(), second.end()] == [0, 0]
        assert "rank 2" in second.text


def test_a_host_of_another_job_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    with job(tmp_path, "print('done')") as start:
        first = start("--rdzv-id", "mine")
        first.await_text("waiting for")
        other = start("--rdzv-id", "other")
        assert other.end() == 2
        assert 'it belongs to job "other", and "mine" meets on' in other.text
        assert "done" not in other.text
        right = start("--rdzv-id", "mine")
        assert [first.end(), right.end()] == [0, 0]
        assert "refused" in first.text


def test_the_time_to_wait_for_hosts_is_limited(tmp_path: Path) -> None:
    with job(tmp_path, "raise SystemExit('it was started')") as start:
        first = start("--rdzv-timeout", 1)
        assert first.end() == 2
        assert "not all hosts came within 1 s" in first.text


def test_logs_have_the_numbers_of_all_ranks(tmp_path: Path) -> None:
    with job(tmp_path, "import os; print('rank', os.environ['RANK'])") as start:
        hosts = [start("--log-dir", tmp_path / "logs"), start("--log-dir", tmp_path / "logs")]
        assert [host.end() for host in hosts] == [0, 0]
        for rank in range(4):
            assert (tmp_path / "logs" / f"rank-{rank}.out").read_text() == f"rank {rank}\n"


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_torchs_rendezvous_can_say_where_the_hosts_meet(backend: str, tmp_path: Path) -> None:
    with job(tmp_path, "import os; print('rank', os.environ['RANK'])") as start:
        hosts = [start("--rdzv-backend", backend, "--node-rank", number) for number in (0, 1)]
        assert [host.end() for host in hosts] == [0, 0], hosts[0].text + hosts[1].text
        ranks = {line.split()[-1] for host in hosts for line in host.text.splitlines() if "rank " in line[4:9]}
        assert ranks == {"0", "1", "2", "3"}


def test_a_rendezvous_of_torch_that_fails_is_reported(tmp_path: Path) -> None:
    with job(tmp_path, "raise SystemExit('it was started')") as start:
        first = start("--rdzv-backend", "c10d", endpoint="no-such-host.invalid:1")
        assert first.end() == 2
        assert "phalanx run: --rdzv-backend c10d: " in first.text
        assert "no-such-host.invalid" in first.text

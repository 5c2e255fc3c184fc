"""`phalanx diagnose` as it is called: which job it takes, what it refuses, what it writes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.diagnosis.observation import FORMAT, VERSION
from tests.diagnosis.jobs import LIMIT_S, diagnose, started, started_program
from tests.leftovers import wait_until

_NOBODY = 65534
_PROGRAM = """
import sys, time
import torch, phalanx

def main(gate):
    group = phalanx.connect(timeout_s=50)
    if group.rank == 1:
        while not gate.exists():
            time.sleep(0.01)
    group.barrier()

if __name__ == "__main__":
    from pathlib import Path
    phalanx.spawn(main, ranks=2, args=(Path(__file__).with_name("gate"),), timeout_s=50)
"""


def _waits(gate: Path) -> None:
    import phalanx

    group = phalanx.connect(timeout_s=50)
    if group.rank == 1:
        while not gate.exists():
            time.sleep(0.01)
    group.barrier()


def _write_program(folder: Path, name: str, text: str = _PROGRAM) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def _is_listed(pid: int) -> bool:
    return f"pid {pid} " in diagnose("--list").stdout


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.slow
def test_one_of_several_jobs_is_chosen_by_its_process(tmp_path: Path) -> None:
    """The launcher counts, its ranks count, and so does whoever started it."""
    with (
        started_program(_write_program(tmp_path, "first.py")) as first,
        started_program(_write_program(tmp_path, "second.py")) as second,
    ):
        assert wait_until(lambda: _is_listed(first.pid) and _is_listed(second.pid), LIMIT_S)
        listed = diagnose("--list").stdout
        assert re.search(rf"pid {first.pid}  .*first\.py", listed), listed
        undecided = diagnose()
        assert undecided.returncode == 1
        assert re.match(r"Error: \d+ jobs run here; say which by its process or its name\n", undecided.stderr)
        assert f"pid {second.pid} " in undecided.stderr

        def seen() -> str:
            return diagnose(str(second.pid)).stdout

        assert wait_until(lambda: "rank 1 holds up rank 0, in barrier #1" in seen(), LIMIT_S), seen()
        ranks = [int(pid) for pid in re.findall(r"rank \d +pid (\d+)", seen())]
        assert len(ranks) == 2
        assert "second.py" in diagnose(str(ranks[1])).stdout
        assert "first.py" not in diagnose(str(ranks[1])).stdout


@pytest.mark.slow
def test_a_job_is_chosen_by_the_name_its_launcher_gave() -> None:
    script = """
import json, os, sys
record = os.memfd_create("phalanx-job")
facts = {"name": "night run", "pid": os.getpid(), "command": ["python", "train.py"], "num_ranks": 2, "pids": []}
os.write(record, json.dumps(facts).encode())
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        seen = diagnose("night run")
        assert seen.stdout.startswith(f'job "night run" (pid {launcher.pid})'), seen
        assert "no rank is in a group of phalanx" in seen.stdout
        assert f"pid {launcher.pid}  night run  2 ranks  python train.py" in diagnose("--list").stdout
        unknown = diagnose("day run")
        assert unknown.returncode == 1
        assert 'no job is called "day run", and there is no such file; jobs that run here:' in unknown.stderr
        launcher.communicate()


_HOLDS_A_RECORD = """
import json, os, sys
record = os.memfd_create("phalanx-job")
os.write(record, json.dumps({"name": sys.argv[1], "pid": os.getpid(), "pids": []}).encode())
os.write(1, b"ready\\n")  # in one piece, as two may do it at once
sys.stdin.read()
"""
_STARTS = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"  # and waits for it
_STARTS_TWO = """
import subprocess, sys
jobs = [subprocess.Popen([sys.executable, "-c", sys.argv[1], name]) for name in ("one", "two")]
for job in jobs:
    job.wait()
"""


@contextlib.contextmanager
def _running(*command: str, num_ready: int = 1) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(num_ready)] == ["ready\n"] * num_ready
        try:
            yield process
        finally:
            process.communicate()


@pytest.mark.slow
def test_a_job_is_chosen_by_any_process_that_started_it() -> None:
    with _running(_STARTS, "-c", _STARTS, "-c", _HOLDS_A_RECORD, "far below") as first:
        seen = diagnose(str(first.pid))
        assert seen.stdout.startswith('job "far below"'), seen


@pytest.mark.slow
def test_a_process_that_started_several_jobs_chooses_none() -> None:
    with _running(_STARTS_TWO, _HOLDS_A_RECORD, num_ready=2) as first:
        seen = diagnose(str(first.pid))
        assert seen.returncode == 1
        assert seen.stderr.startswith(f"Error: 2 jobs were started by process {first.pid}; say which by its process\n")
        assert set(re.findall(r"\n  pid \d+  (\w+)  ", seen.stderr)) == {"one", "two"}


@pytest.mark.slow
def test_a_process_that_is_no_job_is_told() -> None:
    with subprocess.Popen(["sleep", "50"]) as other:
        seen = diagnose(str(other.pid))
        assert other.poll() is None
        other.kill()
    assert (seen.returncode, seen.stdout) == (1, "")
    assert seen.stderr == (
        f"Error: process {other.pid} is in no group of phalanx (or has closed them all)\n"
        "  do       start the program with phalanx run: then phalanx diagnose sees its ranks from the start\n"
    )
    gone = diagnose(str(other.pid))
    assert (gone.returncode, gone.stderr) == (1, f"Error: there is no process {other.pid}\n")


# All that it needs is imported before, because another user may not read where it is installed.
_AS_NOBODY = f"""
import os, sys
import phalanx.cli.diagnose, phalanx.diagnosis.report, phalanx.diagnosis.job_list
os.setgroups([])
os.setgid({_NOBODY})
os.setuid({_NOBODY})
phalanx.cli.diagnose.diagnose(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_job_of_another_user_can_not_be_seen(tmp_path: Path) -> None:
    with started(2, _waits, tmp_path) as job:
        job.wait_for("rank 1 holds up rank 0")
        pid = job.pids()[0]
        seen = _run(_AS_NOBODY, str(pid))
        assert (seen.returncode, seen.stdout) == (1, "")
        assert seen.stderr == (
            f"Error: process {pid} belongs to another user; only that user (or root) may look at it\n"
        )
        script = _AS_NOBODY.replace("phalanx.cli.diagnose.diagnose(sys.argv[1:])", "")
        script += (
            "from phalanx.diagnosis.observation import observe\n"
            "pids = list(map(int, sys.argv[1:]))\n"
            "seen = observe(pids)\n"
            "print(seen.groups, [process.stacks for process in seen.processes])\n"
        )
        assert _run(script, str(pid)).stdout == "[] ['']\n"
        for arguments in ((), ("--list",)):
            assert "no job of phalanx runs here under this user" in "".join(_outputs(_run(_AS_NOBODY, *arguments)))
        job.go_on()


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_root_sees_jobs_of_others() -> None:
    script = f"""
import os, sys
os.setgid({_NOBODY})
os.setuid({_NOBODY})
record = os.memfd_create("phalanx-job")
os.write(record, b'{{"name": "of nobody", "pids": []}}')
print("ready", flush=True)
sys.stdin.read()
"""
    # A process that gave up root may be looked at by nobody but root until it calls another program.
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        assert diagnose(str(launcher.pid)).stdout.startswith(f'job "of nobody" (pid {launcher.pid})')
        launcher.communicate()


def _outputs(done: subprocess.CompletedProcess[str]) -> Sequence[str]:
    return (done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a flight record of phalanx"),
        (b"[1, 2]", "not a flight record of phalanx"),
        (b'{"format": "other"}', "not a flight record of phalanx"),
        (b"\xff\xfe\x00", "can't be read"),
        (json.dumps({"format": FORMAT, "version": 99}).encode(), "a flight record of version 99; this phalanx reads"),
        (json.dumps({"format": FORMAT, "version": VERSION}).encode(), "not a flight record of phalanx"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    seen = diagnose(str(path))
    assert (seen.returncode, seen.stdout) == (1, "")
    assert seen.stderr.startswith(f"Error: {path}: ")
    assert words in seen.stderr


@pytest.mark.slow
def test_a_record_is_written_and_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    with started(2, _waits, tmp_path) as job:
        job.wait_for("rank 1 holds up rank 0")
        written = diagnose(str(os.getpid()), "--json")
        job.go_on()
    record = tmp_path / "record.json"
    record.write_text(written.stdout)
    assert "rank 1 holds up rank 0, in barrier #1" in diagnose(str(record)).stdout
    assert diagnose(str(record), "--json").stdout == written.stdout
    assert "last operations" not in diagnose(str(record), "--short").stdout
    folder = tmp_path / "dumps"
    assert "2 dumps for torch's analyser: python -m torch" in diagnose(str(record), "--torch", str(folder)).stderr
    assert sorted(path.name for path in folder.iterdir()) == ["phalanx_trace_rank_0", "phalanx_trace_rank_1"]
    watched = diagnose(str(record), "--watch")
    assert watched.stderr == f"Error: {record}: a flight record does not change; leave out --watch\n"
    for damaged in _damage(written.stdout):
        record.write_text(damaged)
        seen = diagnose(str(record))
        assert (seen.returncode, seen.stdout) == (1, "")
        assert seen.stderr == f"Error: {record}: not a flight record of phalanx\n"


def _damage(text: str) -> list[str]:
    whole: dict[str, Any] = json.loads(text)
    without_rows = {**whole, "groups": [{**whole["groups"][0], "rows": []}]}
    without_name = {**whole, "groups": [{"rows": []}]}
    return [text[: len(text) // 2], json.dumps(without_rows), json.dumps(without_name)]


@pytest.mark.parametrize("option", ["--json", "--list", "--torch=dumps"])
def test_watching_shows_text_only(option: str) -> None:
    seen = diagnose("--watch", "1", option)
    assert seen.returncode == 2
    assert "--watch shows text only: leave out --json, --torch and --list" in seen.stderr


def test_a_job_behind_watch_is_told_its_place() -> None:
    seen = diagnose("--watch", "train")
    assert seen.returncode == 2
    assert "give a number of seconds, at least 0.1, not 'train'; put the job before --watch" in seen.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [True, False])
def test_watching_ends_with_the_job(tmp_path: Path, is_terminal: bool) -> None:
    program = _write_program(tmp_path, "job.py")
    with started_program(program) as job:
        assert wait_until(lambda: _is_listed(job.pid), LIMIT_S)
        here, there = pty.openpty() if is_terminal else os.pipe()
        command = [sys.executable, "-m", "phalanx.cli", "diagnose", str(job.pid), "--watch", "0.1"]
        with subprocess.Popen(command, stdout=there, env={**os.environ, "TERM": "xterm"}) as watcher:
            os.close(there)
            shown = _read_until(here, b"rank 1 holds up rank 0")
            (tmp_path / "gate").touch()
            shown += _read_until(here, b"the job has ended")
            assert watcher.wait(LIMIT_S) == 0
        os.close(here)
    assert shown.count(b'group "world", ranks 0-1') > 1
    assert (b"\x1b[2J" in shown or b"\x1b[H" in shown) == is_terminal


@pytest.mark.slow
def test_watching_ends_quietly_by_ctrl_c(tmp_path: Path) -> None:
    with started(2, _waits, tmp_path) as job:
        job.wait_for("rank 1 holds up rank 0")
        command = [sys.executable, "-m", "phalanx.cli", "diagnose", str(os.getpid()), "--watch", "30"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watcher:
            assert watcher.stdout is not None
            _read_until(watcher.stdout.fileno(), b"rank 1 holds up rank 0")
            watcher.send_signal(signal.SIGINT)
            assert watcher.communicate(timeout=LIMIT_S)[1] == b""
            assert watcher.returncode == 0
        job.go_on()


def _read_until(descriptor: int, text: bytes) -> bytes:
    read = b""
    while text not in read:
        more = os.read(descriptor, 65536)
        assert more, read
        read += more
    return read


@pytest.mark.slow
def test_torch_is_not_needed(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('torch is broken')")
    with started(2, _waits, tmp_path) as job:
        job.wait_for("rank 1 holds up rank 0")
        seen = diagnose(str(os.getpid()), "--torch", str(tmp_path / "dumps"), PYTHONPATH=str(broken))
        assert seen.returncode == 0, seen
        assert "rank 1 holds up rank 0" in seen.stdout
        job.go_on()


_UNDER_TORCHRUN = """
import time, pathlib
import torch, torch.distributed as dist
dist.init_process_group("phalanx")
if dist.get_rank() == 1:
    while not pathlib.Path(__file__).with_name("gate").exists():
        time.sleep(0.01)
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_torchrun_need_no_launcher_of_ours(tmp_path: Path) -> None:
    program = _write_program(tmp_path, "script.py", _UNDER_TORCHRUN)
    options = ("--standalone", "--nproc-per-node", "2")
    with started_program(program, *options, module="torch.distributed.run") as torchrun:
        seen = ""

        def is_seen() -> bool:
            nonlocal seen
            seen = diagnose(str(torchrun.pid)).stdout
            return "rank 1 holds up rank 0, in all_reduce #" in seen

        assert wait_until(is_seen, LIMIT_S), seen
        assert re.search(r"it is at .*/script\.py:7 in <module>", seen), seen
        (tmp_path / "gate").touch()
        assert torchrun.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_it_answers_at_once(tmp_path: Path) -> None:
    """Limits are many times what was measured (benchmarks/results): tests share a machine that may be busy."""
    with started(8, _waits, tmp_path) as job:
        job.wait_for("rank 1 holds up ranks 0")
        assert _median_s("diagnose", str(os.getpid())) < 15
        job.go_on()
    assert _median_s("--help") < 5


def _median_s(*arguments: str) -> float:
    times = []
    for _ in range(5):
        begun = time.monotonic()
        command = [sys.executable, "-m", "phalanx.cli", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        times.append(time.monotonic() - begun)
    return statistics.median(times)

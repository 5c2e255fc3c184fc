"""Signals to the launcher, and that nothing outlives a job, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import leftovers
from tests.jobs.launching import descendants, is_alive, lines_of, phalanx_run, started_job, write_script

pytestmark = pytest.mark.slow

# Every rank leaves a child, a daemon in a session of its own, and one that ignores SIGTERM and whose parent is gone.
_WITH_DAEMONS = """
    import os, signal, subprocess, sys, time
    import phalanx
    group = phalanx.connect()
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("daemon", flush=True)
            time.sleep(600)
        os._exit(0)
    os.wait()
    group.barrier()
    print("ready", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    if sys.argv[1] == "fail" and group.rank == 1:
        raise KeyError("x")
"""


def _await_daemons(launcher: subprocess.Popen[str]) -> set[int]:
    assert launcher.stdout is not None
    lines = [launcher.stdout.readline() for _ in range(4)]
    assert sorted(line[4:] for line in lines) == ["daemon\n", "daemon\n", "ready\n", "ready\n"]
    found = descendants(launcher.pid)
    assert len(found) == 1 + 2 * 4
    return found


def _zygote(launcher: subprocess.Popen[str]) -> int:
    return leftovers.children(launcher.pid)[0]


def _nothing_left(pids: set[int]) -> bool:
    return leftovers.wait_until(lambda: not any(map(is_alive, pids)), 10)


_KILLS: dict[str, tuple[Callable[[subprocess.Popen[str]], None], int]] = {
    "launcher killed": (lambda launcher: launcher.kill(), -9),
    "zygote killed": (lambda launcher: os.kill(_zygote(launcher), signal.SIGKILL), 137),
    "SIGTERM": (lambda launcher: launcher.terminate(), 143),
    "SIGHUP": (lambda launcher: launcher.send_signal(signal.SIGHUP), 129),
    "SIGINT": (lambda launcher: launcher.send_signal(signal.SIGINT), 130),
}


@pytest.mark.parametrize("how", _KILLS)
def test_nothing_outlives_a_job_that_is_ended(how: str, tmp_path: Path) -> None:
    script = write_script(tmp_path, _WITH_DAEMONS)
    strike, code = _KILLS[how]
    with started_job("-n", 2, "--grace", "0.3", script, "hang", tmp_path / "never") as launcher:
        pids = _await_daemons(launcher)
        strike(launcher)
        assert launcher.wait(15) == code
        assert _nothing_left(pids), [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("fail", 1)])
def test_nothing_outlives_a_job_that_ends(how: str, code: int, tmp_path: Path) -> None:
    script, gate = write_script(tmp_path, _WITH_DAEMONS), tmp_path / "gate"
    with started_job("-n", 2, script, how, gate) as launcher:
        pids = _await_daemons(launcher)
        gate.touch()
        assert launcher.wait(15) == code
        assert _nothing_left(pids)


def test_children_of_a_rank_die_with_it_while_the_job_goes_on(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, subprocess, sys, time
        from pathlib import Path
        note = Path(sys.argv[1])
        if os.environ["RANK"] == "0":
            note.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            sys.exit()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pid = note.read_text() if note.exists() else ""
            if pid and not Path(f"/proc/{pid}").exists():
                sys.exit(print("it is gone"))
            time.sleep(0.01)
        """,
    )
    result = phalanx_run("-n", 2, script, tmp_path / "note")
    assert lines_of(result.stdout, 1) == ["it is gone"]


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, signal, time
        signal.signal(signal.SIGINT, lambda *_: os.write(1, b"not now\\n"))  # it may come in the middle of print()
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
        """,
    )
    with started_job("-n", 1, "--grace", "600", script) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "[0] ready\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout.readline() == "[0] not now\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(200) == 130, "the second one does not wait for the grace time"


def test_ranks_may_use_their_grace_to_tidy_up(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, signal, sys, time
        def save(*_):
            time.sleep(0.2)
            os.write(1, b"saved\\n")  # the signal may have come in the middle of print()
            os._exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
        """,
    )
    with started_job("-n", 2, "--grace", "10", script) as launcher:
        assert launcher.stdout is not None
        assert {launcher.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        launcher.terminate()
        out, err = launcher.communicate(timeout=15)
        assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]
        assert launcher.returncode == 143
        assert "phalanx run: ended by SIGTERM\n" in err


def test_an_interrupt_while_torch_is_imported_ends_the_job(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print('it ran')")
    with started_job("-n", 1, script) as launcher:
        assert leftovers.wait_until(lambda: len(descendants(launcher.pid)) == 1, 10)
        pids = descendants(launcher.pid)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=15)
        assert (launcher.returncode, out) == (130, "")
        assert _nothing_left(pids)


def test_a_job_ends_when_nobody_reads_its_output(tmp_path: Path) -> None:
    script = write_script(tmp_path, "while True: print('x' * 100)")
    with started_job("-n", 2, script) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(15) == 141
        assert launcher.stderr is not None
        assert launcher.stderr.read() == ""

"""What ranks print, as it arrives where the launcher prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import IO, cast

import pytest

from tests.jobs.launching import COMMAND, LIMIT_S, lines_of, phalanx_run, started_job, write_script

pytestmark = pytest.mark.slow


def test_lines_are_whole_and_go_where_they_belong(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys
        rank = int(os.environ["RANK"])
        for number in range(300):
            print(f"{rank}:{number}:" + "x" * 200)
            print(f"error {rank}:{number}", file=sys.stderr)
        os.write(1, b"\\xff\\x00 binary\\n")
        os.write(1, b"\\x1b[31mred\\x1b[0m\\n")
        os.write(1, b"y" * 300_000 + b"\\n")
        os.write(1, b"no end")
        """,
    )
    logs = tmp_path / "new" / "logs"
    result = phalanx_run("-n", 11, "--log-dir", logs, script, text=False)
    assert result.returncode == 0
    out, err = cast(bytes, result.stdout).splitlines(), cast(bytes, result.stderr).splitlines()
    for rank in range(11):
        prefix = b"[%2d] " % rank
        mine = [line.removeprefix(prefix) for line in out if line.startswith(prefix)]
        raw = (logs / f"rank-{rank}.out").read_bytes()
        assert mine == raw.splitlines()
        assert raw.endswith(b"\nno end")
        assert mine[:2] == [b"%d:0:" % rank + b"x" * 200, b"%d:1:" % rank + b"x" * 200]
        assert mine[-4:] == [b"\xff\x00 binary", b"\x1b[31mred\x1b[0m", b"y" * 300_000, b"no end"]
        errors = [line for line in err if line.startswith(prefix)]
        assert errors == [prefix + b"error %d:%d" % (rank, number) for number in range(300)]
    assert len(out) == 11 * 304


def test_a_progress_bar_is_printed_in_its_final_form_only(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import sys, time
        for step in range(101):
            print(f"\\r{step}%", end="", file=sys.stderr, flush=True)
            time.sleep(0.002)
        print(file=sys.stderr)
        """,
    )
    result = phalanx_run("-n", 2, script)
    assert sorted(result.stderr.splitlines()) == ["[0] 100%", "[1] 100%"]


def test_a_rank_that_prints_very_much_fills_no_memory(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os
        line = b"z" * 99 + b"\\n"
        for _ in range(200):
            os.write(1, line * 10_000)
        """,
    )
    with started_job("-n", 1, script, text=False) as launcher:
        assert launcher.stdout is not None
        time.sleep(2)  # nobody reads: everything stands still
        peak = _peak_memory(launcher.pid)
        output = cast(IO[bytes], launcher.stdout)
        assert output.read(10).startswith(b"[0] z")
        num_bytes = 10
        while data := output.read(1 << 20):
            num_bytes += len(data)
        assert num_bytes == 200 * 10_000 * 104
        assert launcher.wait(10) == 0
    assert peak < 100e6


def _peak_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1000


def test_a_full_disk_costs_the_log_and_not_the_job(tmp_path: Path) -> None:
    script = write_script(tmp_path, "print('a line'); print('another')")
    (tmp_path / "rank-0.out").symlink_to("/dev/full")
    (tmp_path / "rank-1.out").symlink_to("/dev/full")
    result = phalanx_run("-n", 3, "--log-dir", tmp_path, script)
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == 6
    assert re.fullmatch(
        r"phalanx run: the log of rank [01] is not complete: No space left on device; the job goes on\n", result.stderr
    )
    assert (tmp_path / "rank-2.out").read_text() == "a line\nanother\n"


def test_all_is_well_is_no_news(tmp_path: Path) -> None:
    script = write_script(tmp_path, "")
    result = phalanx_run("-n", 2, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert lines_of(result.stdout, 0) == []


def test_a_launcher_without_streams_runs_its_job(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import sys; print('x'); open(sys.argv[1], 'w').close()")
    command = shlex.join([*COMMAND, "-n", "1", str(script), str(tmp_path / "ran")])
    assert subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], check=False, timeout=LIMIT_S).returncode == 0
    assert (tmp_path / "ran").exists()
    shell = ["sh", "-c", f"{command} >/dev/full"]
    full = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (full.returncode, full.stderr) == (0, "phalanx run: output is lost from here on: No space left on device\n")

"""When a rank fails: who is blamed, what the others hear, and the exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import lines_of, phalanx_run, write_script

pytestmark = pytest.mark.slow


def test_the_first_failure_is_told_and_the_others_are_freed(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import sys, time, torch, phalanx
        from pathlib import Path
        group = phalanx.connect()
        half = group.split([0, 2]) if group.rank in (0, 2) else None
        group.barrier()
        if group.rank == 2:
            while not (half.snapshot()[0].sleeps_for >= 0 and group.snapshot()[1].sleeps_for >= 0
                       and Path(sys.argv[1]).exists()):
                time.sleep(0.01)
            raise ValueError("bad batch")
        if group.rank == 0:
            half.all_reduce(torch.ones(3))
        if group.rank == 1:
            group.all_reduce(torch.ones(3))
        while True: Path(sys.argv[1]).touch(); time.sleep(0.01)
        """,
        "train.py",
    )
    result = phalanx_run("-n", 4, "--grace", "5", script, tmp_path / "rank 3 is there")
    assert result.returncode == 1
    block = result.stderr[result.stderr.index("phalanx run:") :]
    assert (
        block.splitlines()[0] == f"phalanx run: rank 2 of 4 failed: ValueError: bad batch ({tmp_path.name}/train.py:11)"
    )
    assert re.search(r"freed +rank 0, in all_reduce #1, .*train.py:13", block)
    assert re.search(r"freed +rank 1, in all_reduce #2, .*train.py:15", block)
    assert re.search(r"ended +rank 3 by SIGTERM, at .*train.py:16 in <module>", block)
    assert "  exit code   1, of rank 2" in block.splitlines()
    logs = re.search(r"logs +(.*)/rank-\*\.err", block)
    assert logs is not None
    for rank in (0, 1):
        assert lines_of(result.stderr, rank) == []
        heard = (Path(logs[1]) / f"rank-{rank}.err").read_text()
        assert re.search(r"PeerFailedError: .* raised: ValueError: bad batch \(.*train.py:11\)", heard)


@pytest.mark.parametrize(
    ("backend", "end", "code", "words"),
    [
        ("phalanx", "sys.exit(3)", 3, "rank 1 of 3 failed: sys.exit(3) (FOLDER/program.py:5)"),
        ("gloo", "sys.exit('no data')", 1, "rank 1 of 3 failed: sys.exit('no data') (FOLDER/program.py:5)"),
        ("phalanx", "os._exit(7)", 7, "rank 1 of 3 ended with exit code 7"),
        ("gloo", "os.kill(os.getpid(), 9)", 137, "rank 1 of 3 was killed by SIGKILL (signal 9)"),
        ("phalanx", "os.kill(os.getpid(), 11)", 139, "rank 1 of 3 was killed by SIGSEGV (signal 11)"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_to_blame(
    backend: str, end: str, code: int, words: str, tmp_path: Path
) -> None:
    script = write_script(
        tmp_path,
        f"""
        import os, sys, torch, torch.distributed as dist
        dist.init_process_group({backend!r})
        if dist.get_rank() == 1:
            {end}
        dist.all_reduce(torch.ones(3))
        """,
    )
    result = phalanx_run("-n", 3, script)
    assert (result.returncode, words) == (code, words), result.stderr
    assert f"phalanx run: {words}\n".replace("FOLDER", tmp_path.name) in result.stderr


def test_an_error_raised_because_of_another_rank_is_not_to_blame(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys, phalanx
        group = phalanx.connect()
        group.barrier()
        if group.rank == 1:
            os._exit(5)
        try:
            group.barrier()
        except phalanx.PeerError as error:
            raise RuntimeError("training failed") from error
        """,
    )
    result = phalanx_run("-n", 3, script)
    assert result.returncode == 5, result.stderr
    assert "rank 1 of 3 ended with exit code 5" in result.stderr


def test_a_rank_that_never_connects_is_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, phalanx
        if os.environ["RANK"] != "1":
            phalanx.connect().barrier()
        """,
    )
    result = phalanx_run("-n", 2, script)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    end = "phalanx run: rank 1 of 2 has reached the end of its program while rank 0 still waited for it"
    assert lines[:2] == [end, "  last        it has called nothing in the group"]


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, signal, sys, time
        from pathlib import Path
        ready = Path(sys.argv[1])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while os.environ["RANK"] == "1":
            if ready.exists():
                sys.exit(4)
            time.sleep(0.01)
        while True:
            ready.touch()
            time.sleep(0.01)
        """,
    )
    result = phalanx_run("-n", 2, "--grace", "0.2", script, tmp_path / "ready")
    assert result.returncode == 4
    assert re.search(r"ended +rank 0 by SIGKILL, at .*program.py:\d+ in <module>", result.stderr)


def test_ranks_are_started_again_after_a_failure(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys, torch, torch.distributed as dist, phalanx
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", attempt, os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
        group = phalanx.connect()
        dist.init_process_group("gloo")
        dist.barrier()
        if group.rank == 1 and attempt < int(sys.argv[1]):
            raise OSError("not yet")
        group.barrier()
        dist.destroy_process_group()
        """,
    )
    logs = tmp_path / "logs"
    result = phalanx_run("-n", 2, "--restart", 2, "--log-dir", logs, script, 2)
    assert result.returncode == 0, result.stderr
    assert lines_of(result.stdout, 0) == ["attempt 0 2", "attempt 1 2", "attempt 2 2"]
    assert (logs / "rank-0.out").read_text() == "attempt 0 2\nattempt 1 2\nattempt 2 2\n"
    told = f"phalanx run: rank 1 of 2 failed: OSError: not yet ({tmp_path.name}/program.py:9)"
    assert f"{told}; all ranks start again (1 of 2)\n" in result.stderr

    result = phalanx_run("-n", 2, "--restart", 1, script, 5)
    assert result.returncode == 1
    assert result.stderr.count("all ranks start again") == 1
    assert f"{told}\n" in result.stderr


def test_when_the_time_is_up_every_rank_is_described(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time, torch, phalanx
        group = phalanx.connect()
        if group.rank == 0:
            group.all_reduce(torch.ones(3))
        while True:
            time.sleep(0.01)
        """,
    )
    wanted = [
        r"rank 0 is in all_reduce #1, .*program.py:5, for ranks 1-2\n",
        r"  rank 1 is at \S+program.py:[67] in <module>\n",
    ]
    for timeout_s in (4, 12, 40):  # as long as it takes to start them: a busy machine may need a while
        result = phalanx_run("-n", 3, "--timeout", timeout_s, "--grace", "0.2", script)
        assert result.returncode == 124
        told = result.stderr[result.stderr.index(f"phalanx run: the job was not done after {timeout_s} s") :]
        if all(re.search(pattern, told) for pattern in wanted):
            break
    assert [pattern for pattern in wanted if not re.search(pattern, told)] == [], told
    assert re.search(r"phalanx run: ended after \d+ s\n", told)
    assert "  exit code   124\n" in told

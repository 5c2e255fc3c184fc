"""What the terminal shows when ranks fail, and where the rest is."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.jobs.launching import environment_without, lines_of, phalanx_run, started_job, write_script

pytestmark = pytest.mark.slow

_OVER_TORCH = """
import torch.distributed as dist
dist.init_process_group("phalanx")
rank, all_reduce = dist.get_rank(), dist.all_reduce
"""
_OVER_GROUP = """
import phalanx
group = phalanx.connect()
rank, all_reduce = group.rank, group.all_reduce
"""
_KILL = """
import os, signal, torch
for step in range(5):
    if rank == 3 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce(torch.ones(4))
"""


def _logs_of(stderr: str) -> Path:
    found = re.search(r"^  logs +(.*)/rank-\*\.err: all tracebacks, in full$", stderr, re.MULTILINE)
    assert found is not None, stderr
    return Path(found[1])


@pytest.mark.parametrize("beginning", [_OVER_TORCH, _OVER_GROUP], ids=["torch", "group"])
def test_a_killed_rank_is_told_in_a_few_lines(beginning: str, tmp_path: Path, records: Path) -> None:
    script = write_script(tmp_path, beginning + _KILL)
    result = phalanx_run("-n", 8, script)
    assert result.returncode == 137
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) <= 15
    assert lines[0] == "phalanx run: rank 3 of 8 was killed by SIGKILL (signal 9)"
    place = rf"{tmp_path.name}/program.py:\d+"
    # The second form is what the survivors say, if they have ended before the launcher looks.
    assert re.fullmatch(rf"  last        (after all_reduce #3, {place}|left all_reduce #3 .*, {place}, .*)", lines[1])
    assert lines[2].startswith("  do          find out who killed it")
    assert re.fullmatch(rf"  freed       ranks 0-2, 4-7, in all_reduce #4, {place}", lines[3])
    assert lines[-1] == "  exit code   137, of rank 3"
    folder = _logs_of(result.stderr)
    assert folder.parent == records
    assert sorted(path.name for path in folder.iterdir()) == [f"rank-{rank}.err" for rank in (0, 1, 2, 4, 5, 6, 7)]
    for path in folder.iterdir():
        assert "PeerDiedError: all_reduce #4" in path.read_text()


def test_without_a_home_folder_the_logs_are_below_the_folder_for_temporary_files(tmp_path: Path) -> None:
    environment = environment_without("PHALANX_RECORD_DIR", "XDG_CACHE_HOME", HOME="/proc/x", TMPDIR=str(tmp_path))
    result = phalanx_run("-n", 4, write_script(tmp_path, _OVER_GROUP + _KILL), env=environment)
    assert len(result.stderr.splitlines()) <= 15
    assert tmp_path in _logs_of(result.stderr).parents


@pytest.mark.parametrize("odd", [0, 2])
def test_a_mismatch_names_the_odd_rank_and_both_lines(odd: int, tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        f"""
        import torch, torch.distributed as dist
        dist.init_process_group("phalanx")
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == {odd}:
            dist.all_reduce(torch.ones(3))
        else:
            dist.all_reduce(torch.ones(4))
        """,
    )
    result = phalanx_run("-n", 4, script)
    others = "ranks 1-3" if odd == 0 else "ranks 0-1, 3"
    file = f"{tmp_path.name}/program.py"
    lines = result.stderr.splitlines()
    assert len(lines) <= 12
    assert lines[:5] == [
        f"phalanx run: rank {odd} of 4 failed: MismatchError: "
        f'all_reduce #2 of group "0": ranks disagree on shape ({file}:6)',
        f"  here        rank {odd} of 4 called all_reduce sum float32 (3,), {file}:6",
        f"  differs     {others} called all_reduce sum float32 (4,), {file}:8",
        "  do          give every rank the same shape, e.g. drop the last partial batch (drop_last=True)",
        f"  freed       {others}, in all_reduce #2, {file}:8",
    ]
    assert lines[-1] == f"  exit code   1, of rank {odd}"
    assert all("MismatchError" in path.read_text() for path in _logs_of(result.stderr).iterdir())


def test_two_ranks_that_disagree_are_both_named(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, phalanx
        group = phalanx.connect()
        group.all_reduce(torch.ones(group.rank + 1))
        """,
    )
    lines = phalanx_run("-n", 2, script).stderr.splitlines()
    assert lines[0].startswith("phalanx run: ranks 0-1 of 2 failed: MismatchError")
    assert [line.split()[0] for line in lines[1:4]] == ["here", "differs", "do"]


_RAISES = """
import sys, torch, torch.distributed as dist

def load():
    return {}["batch"]

dist.init_process_group("phalanx")
print("before", dist.get_rank(), file=sys.stderr)
if dist.get_rank() == 2:
    load()
dist.all_reduce("no tensor" if dist.get_rank() == 9 else torch.ones(3))
"""


def test_an_exception_is_shown_once_without_torchs_prefix(tmp_path: Path) -> None:
    script = write_script(tmp_path, _RAISES)
    result = phalanx_run("-n", 4, script)
    assert [lines_of(result.stderr, rank) for rank in (0, 1, 3)] == [["before 0"], ["before 1"], ["before 3"]]
    assert lines_of(result.stderr, 2) == [
        "before 2",
        "Traceback (most recent call last):",
        f'  File "{script}", line 10, in <module>',
        "    load()",
        f'  File "{script}", line 5, in load',
        '    return {}["batch"]',
        "           ~~^^^^^^^^^",
        "KeyError: 'batch'",
    ]
    told = result.stderr[result.stderr.index("phalanx run:") :].splitlines()
    assert told[0] == f"phalanx run: rank 2 of 4 failed: KeyError: 'batch' ({tmp_path.name}/program.py:5)"
    assert len(told) == 5


def test_full_trace_prints_everything(tmp_path: Path) -> None:
    script = write_script(tmp_path, _RAISES)
    result = phalanx_run("-n", 4, "--full-trace", script)
    assert "KeyError: 'batch'" in lines_of(result.stderr, 2)  # torch's prefix would name the rank a second time
    for rank in (0, 1, 3):
        assert "PeerFailedError" in "\n".join(lines_of(result.stderr, rank))
        assert "in all_reduce\n" in "\n".join(lines_of(result.stderr, rank))
    assert "  logs  " not in result.stderr
    same = phalanx_run("-n", 4, script, env=environment_without(PHALANX_FULL_TRACE="1"))
    assert "PeerFailedError" in "\n".join(lines_of(same.stderr, 0))


def test_equal_tracebacks_are_shown_once(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import nothing_like_it")
    result = phalanx_run("-n", 4, script)
    assert result.stderr.count("Traceback") == 1
    told = result.stderr[result.stderr.index("phalanx run:") :].splitlines()
    assert told[0].startswith("phalanx run: ranks 0-3 of 4 failed: ModuleNotFoundError: No module named")
    found = re.fullmatch(r"  traceback   that of rank (\d) is above; ranks (.*): the same", told[1])
    assert found is not None
    assert lines_of(result.stderr, int(found[1]))[0] == "Traceback (most recent call last):"
    assert len(list(_logs_of(result.stderr).iterdir())) == 4


def test_different_tracebacks_are_all_shown(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os
        if os.environ["RANK"] == "1":
            raise ValueError("one")
        raise KeyError(os.environ["RANK"])
        """,
    )
    # The second failure must not be the end that the launcher asked for.
    result = phalanx_run("-n", 3, "--grace", "30", script)
    assert result.stderr.count("Traceback") == 2
    assert result.stderr.count("ValueError: one\n") == 1
    for rank in ("0", "2"):
        assert f"KeyError: '{rank}' (" in result.stderr


def test_logs_are_byte_for_byte_what_ranks_print(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import atexit, os, sys, torch, torch.distributed as dist
        dist.init_process_group("phalanx")
        atexit.register(os.write, 2, b"last words")
        os.write(2, b"no line end")
        if dist.get_rank() == 1:
            raise ValueError("x")
        dist.barrier()
        """,
    )
    result = phalanx_run("-n", 2, "--log-dir", tmp_path / "logs", script)
    assert _logs_of(result.stderr) == tmp_path / "logs"
    freed, failed = ((tmp_path / "logs" / f"rank-{rank}.err").read_text() for rank in range(2))
    assert failed == (
        "no line end[rank1]: Traceback (most recent call last):\n"
        f'[rank1]:   File "{script}", line 7, in <module>\n'
        '[rank1]:     raise ValueError("x")\n'
        "[rank1]: ValueError: x\nlast words"
    )
    assert re.fullmatch(
        r"(?s)no line end\[rank0\]: Trace.*line 8.*distributed_c10d.*PeerFailedError.*\nlast words", freed
    )
    assert lines_of(result.stderr, 0) == ["no line end"]
    assert sorted(lines_of(result.stderr, 1)) == sorted(
        ["no line end", *failed.replace("[rank1]: ", "").removeprefix("no line end").splitlines()]
    )


def test_a_hook_of_the_program_prints_its_own_words(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys, torch, phalanx
        def hook(kind, error, trace):
            os.write(2, f"{kind.__name__} at step 7\\n".encode())
        sys.excepthook = hook
        group = phalanx.connect()
        if group.rank == 1:
            raise ValueError("x")
        group.barrier()
        """,
    )
    result = phalanx_run("-n", 3, script)
    assert lines_of(result.stderr, 1) == ["ValueError at step 7"]
    assert lines_of(result.stderr, 0) == ["PeerFailedError at step 7"], "the hook may wait for a person"


def test_a_program_that_has_redirected_stderr_finds_its_traceback_there(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys
        file = os.open(sys.argv[1] + os.environ["RANK"], os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 2)
        raise ValueError("x")
        """,
    )
    result = phalanx_run("-n", 2, script, tmp_path / "mine")
    assert [(tmp_path / f"mine{rank}").read_text().splitlines()[-1] for rank in range(2)] == ["ValueError: x"] * 2
    assert "Traceback" not in result.stderr
    assert "phalanx run: ranks 0-1 of 2 failed: ValueError: x" in result.stderr


def test_a_program_that_closes_all_descriptors_keeps_its_own_files(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys
        os.closerange(3, 1000)
        for number in range(40):
            assert os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND) >= 3
        raise ValueError("x")
        """,
    )
    result = phalanx_run("-n", 1, script, tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == b""
    assert lines_of(result.stderr, 0)[-1] == "ValueError: x"
    assert result.returncode == 1


def test_a_rank_that_is_killed_while_it_prints_is_shown(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, signal, sys
        def hook(*_):
            os.write(2, b"half a ")
            os.kill(os.getpid(), signal.SIGKILL)
        sys.excepthook = hook
        raise ValueError("x")
        """,
    )
    result = phalanx_run("-n", 1, script)
    assert lines_of(result.stderr, 0) == ["half a "]
    assert result.returncode == 137


def test_nothing_is_lost_if_nothing_can_be_written(tmp_path: Path, records: Path) -> None:
    records.write_text("a file where the folder should be")
    script = write_script(tmp_path, _OVER_GROUP + _KILL.replace("== 3", "== 1"))
    result = phalanx_run("-n", 3, script)
    for rank in (0, 2):
        assert "PeerDiedError" in "\n".join(lines_of(result.stderr, rank))
    assert "the flight record can't be written" in result.stderr


def test_a_very_long_failure_is_not_held_back(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, sys
        def hook(*_):
            for number in range(400):
                os.write(2, b"%065535d\\n" % number)
        sys.excepthook = hook
        raise ValueError("x")
        """,
    )
    result = phalanx_run("-n", 1, script)
    assert [int(line[-9:]) for line in lines_of(result.stderr, 0)] == list(range(400))


def test_on_ctrl_c_the_tracebacks_are_in_the_logs(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time, phalanx
        phalanx.connect().barrier()
        print("ready", flush=True); time.sleep(60)  # one line, because the interrupt may come between the two
        """,
    )
    with started_job("-n", 3, "--grace", "30", script, stderr=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        assert sorted(launcher.stdout.readline() for _ in range(3)) == [f"[{rank}] ready\n" for rank in range(3)]
        launcher.send_signal(signal.SIGINT)
        told = launcher.stderr.read()
        assert launcher.wait(60) == 130
    assert "Traceback" not in told
    assert told.startswith("phalanx run: ended by SIGINT\n  ended       ranks 0-2 by SIGINT, at ")
    assert "KeyboardInterrupt" in (_logs_of(told) / "rank-2.err").read_text()

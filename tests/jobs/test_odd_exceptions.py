"""Uncaught exceptions that are out of the ordinary, and programs that handle them in their own way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.jobs.launching import lines_of, phalanx_run, started_job, write_script

pytestmark = pytest.mark.slow


def test_an_exception_without_a_text_is_reported_like_any_other(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        class Mute(RuntimeError):
            def __str__(self):
                raise KeyError("no text")
        raise Mute
        """,
    )
    result = phalanx_run("-n", 1, script)
    assert result.returncode == 1
    told = lines_of(result.stderr, 0)
    assert [line for line in told if line.startswith("  File ")] == [f'  File "{script}", line 5, in <module>']
    assert told[-1].startswith("Mute: <exception str() failed>")
    place = f"{tmp_path.name}/program.py:5"
    assert f"phalanx run: rank 0 of 1 failed: Mute: (its text can't be shown) ({place})\n" in result.stderr


_HOOK = """
def wait_for_a_person(kind, error, trace):
    print("stopped at", repr(error), file=sys.stderr, flush=True)
    with open(sys.argv[1]) as answer:  # it waits for one
        answer.read()
    print("goes on", file=sys.stderr)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_hook_of_the_program_prints_is_seen_while_it_waits(when: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    make = 'dist.init_process_group("phalanx")\n'
    install = "sys.excepthook = wait_for_a_person\n"
    script = write_script(
        tmp_path,
        f"import sys, torch.distributed as dist\n{_HOOK}"
        + (install + make if when == "before" else make + install)
        + "raise ValueError('x')\n",
    )
    with started_job("-n", 1, "--timeout", 60, script, answer, stderr=subprocess.PIPE) as launcher:
        assert launcher.stderr is not None
        if when == "after":  # torch's hook collects what a hook prints that it has found before
            assert launcher.stderr.readline() == "[0] stopped at ValueError('x')\n"
        answer.write_text("go on")
        told = launcher.stderr.read()
        assert launcher.wait(60) == 1
    assert told.count("stopped at") == (1 if when == "before" else 0)
    assert "goes on" in told
    assert "phalanx run: rank 0 of 1 failed: ValueError: x (" in told


def test_the_usual_traceback_is_still_held_back_below_torchs_hook(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("phalanx")
        if dist.get_rank() == 0:
            raise ValueError("x")
        dist.barrier()
        """,
    )
    result = phalanx_run("-n", 2, "--grace", 40, script)
    assert lines_of(result.stderr, 0)[-1] == "ValueError: x"
    assert lines_of(result.stderr, 1) == []

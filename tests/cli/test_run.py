"""The command line of `phalanx run`: what it refuses, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.run import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "Missing argument 'PROGRAM'"),
        (["-n", "0", "train.py"], "-n 0 is not possible; give 1 to 1024 ranks"),
        (["-n", "-3", "train.py"], "-n -3 is not possible"),
        (["-n", "1025", "train.py"], "-n 1025 is not possible"),
        (["-n", "many", "train.py"], "'many' is not a number of ranks; give a number, gpu, cpu or auto"),
        (["-n", "2", "trian.py"], "trian.py: no such file; did you mean train.py?"),
        (["-n", "2", "."], ". is a folder without __main__.py"),
        (["-n", "2", "-m", "trian"], "no module named trian; did you mean train?"),
        (["-n", "2", "--env", "NAME", "train.py"], '"NAME" does not set a variable; give NAME=VALUE'),
        (["-n", "2", "--env", "=x", "train.py"], '"=x" does not set a variable'),
        (["-n", "2", "--gpus", "two", "train.py"], '"two" names no GPUs'),
        (["-n", "2", "--gpus", "0,0", "train.py"], '"0,0" names a GPU twice'),
        (["-n", "2", "--gpus", "99", "train.py"], "--virtual-gpus 99"),
        (["-n", "2", "--gpu-memory", "even", "train.py"], "say which, such as --gpus 1"),
        (["-n", "2", "--gpus", "0,", "--gpu-memory", "lots", "train.py"], 'is "lots"; give "even"'),
        (["-n", "2", "--gpus", "0,", "--gpu-memory", "0.9", "train.py"], "come to 1.80 of its memory"),
        (["-n", "2", "--virtual-gpus", "2", "--gpu-memory", "0.9", "train.py"], "--virtual-memory"),
        (["-n", "2", "--log-dir", "train.py", "train.py"], "--log-dir train.py: File exists"),
        (["-n", "2", "--log-dir", "/proc/logs", "train.py"], "--log-dir /proc/logs: No such file or directory"),
        (["-n", "2", "--trace", "train.py/x", "train.py"], "--trace train.py/x: Not a directory"),
        (["--timeout", "0", "train.py"], "'--timeout': give a number of seconds, more than 0, not '0'"),
        (["--timeout", "abc", "train.py"], "'--timeout': give a number of seconds, more than 0, not 'abc'"),
        (["--timeout", "nan", "train.py"], "'--timeout': give a number of seconds, more than 0, not 'nan'"),
        (["--warn-after", "soon", "train.py"], "give a number of seconds, at least 0, not 'soon'"),
        (["--threads-per-rank", "0", "train.py"], "'--threads-per-rank': give a whole number, at least 1, not '0'"),
        (["--virtual-gpus", "many", "train.py"], "'--virtual-gpus': give a whole number, from 1 to 64, not 'many'"),
        (["-n", "2", "--frob", "train.py"], "No such option"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('it was started')")
    result = CliRunner().invoke(run, arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "it was started" not in result.output


def test_too_many_ranks_for_the_open_files_limit_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    program = [sys.executable, "-c", "from phalanx.cli.run import run; run()", "-n", "100", str(script)]
    limited = ["bash", "-c", 'ulimit -n 512; exec "$@"', "bash", *program]
    result = subprocess.run(limited, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 2
    assert "100 ranks need 900 open files and the limit is 512" in result.stderr


@pytest.mark.slow
def test_the_launcher_never_imports_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    code = (
        "import sys\nfrom phalanx.cli.run import run\n"
        "try: run()\n"
        "except SystemExit as end: sys.exit(9 if 'torch' in sys.modules or 'rich' in sys.modules else end.code)"
    )
    command = [sys.executable, "-c", code, "-n", "1", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert (result.returncode, result.stdout) == (0, "[0] ran\n"), result.stderr

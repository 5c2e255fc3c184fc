"""Shell completion, asked for as a shell does: through environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def _complete(folder: Path | None = None, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "phalanx"],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
        cwd=folder,
    )  # fmt: skip
    assert " torch\n" not in run.stderr  # it would take a second for each press of the key
    return run.stdout


def _answer(words: str, folder: Path | None = None) -> str:
    number = str(len(words.split(" ")) - 1)
    return _complete(folder, _PHALANX_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)


def _offers(words: str, folder: Path | None = None) -> list[str]:
    return [line.partition(",")[2] for line in _answer(words, folder).splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_a_script(shell: str) -> None:
    if shell == "bash" and not os.path.exists("/bin/bash"):
        pytest.skip("click asks bash for its version")
    script = _complete(_PHALANX_COMPLETE=f"{shell}_source")
    assert f"_PHALANX_COMPLETE={shell}_complete" in script


def test_commands_are_completed() -> None:
    assert _offers("phalanx d") == ["devices", "diagnose", "doctor"]


def test_options_are_completed() -> None:
    assert _offers("phalanx run --gpu") == ["--gpus", "--gpu-memory"]


def test_nothing_is_run_while_a_word_is_completed() -> None:
    assert _offers("phalanx diagnose --l") == ["--list"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("phalanx run trai", "file,trai"),
        ("phalanx run -n 2 --gpus none trai", "file,trai"),
        ("phalanx run train.py dat", "file,dat"),
        ("phalanx run train.py --data dat", "file,dat"),
        ("phalanx run --trace rec", "dir,rec"),
        ("phalanx run --log-dir lo", "dir,lo"),
    ],
)
def test_the_shell_completes_files_and_folders(words: str, kind: str) -> None:
    assert _answer(words).splitlines() == [kind]


def test_the_options_of_the_program_are_its_own() -> None:
    assert _answer("phalanx run train.py --gpu").strip() == ""


def test_models_of_virtual_gpus_are_completed() -> None:
    assert _offers("phalanx run --virtual-gpu H") == ["h100", "h200"]


_JOBS = """
import json, os, sys
for name in sys.argv[1:]:
    record = os.memfd_create("phalanx-job")
    os.write(record, json.dumps({"name": name, "pid": os.getpid(), "pids": []}).encode())
print("ready", flush=True)
sys.stdin.read()
"""


def test_jobs_that_run_are_completed_and_files_if_none_fits() -> None:
    command = [sys.executable, "-c", _JOBS, "tab-night", "tab-day", "tab two", "other"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        assert _answer("phalanx diagnose tab").splitlines() == ["file,tab", "plain,tab-night", "plain,tab-day"]
        assert str(launcher.pid) in _offers("phalanx diagnose ")  # "tab two" would have to be quoted
        launcher.communicate()
    assert _answer("phalanx diagnose tab").splitlines() == ["file,tab"]


def test_errors_are_no_completions(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['phalanx.diagnosis.job_list'] = None\n")
    words = "phalanx diagnose tab"
    answer = _complete(_PHALANX_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="2", PYTHONPATH=str(tmp_path))
    assert answer.splitlines() == ["file,tab"]


def test_modules_are_completed_after_m(tmp_path: Path) -> None:
    for name in ("training_mine.py", "models_mine/__init__.py", "models_mine/big.py", "models_mine/bigger/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("raise SystemExit('it was imported')")
    assert _offers("phalanx run -m training_m", tmp_path) == ["training_mine"]
    assert _offers("phalanx run -n 2 -m models_mine.b", tmp_path) == ["models_mine.big", "models_mine.bigger"]


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="there is no bash")
@pytest.mark.slow
def test_bash_completes_the_name_of_a_script(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect", reason="needs a terminal: pexpect is not installed")
    (tmp_path / "training_script.py").write_text("")
    (tmp_path / "phalanx").write_text(f'#!/bin/sh\nexec {sys.executable} -m phalanx "$@"\n')
    (tmp_path / "phalanx").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    shell = pexpect.spawn(
        "/bin/bash", ["--norc"], cwd=tmp_path, env={**os.environ, "PATH": path, "PS1": "> ", "TERM": "dumb"}, timeout=60
    )
    shell.sendline('eval "$(_PHALANX_COMPLETE=bash_source phalanx)"; echo rea""dy')
    shell.expect("ready")
    shell.send("phalanx run trai\t")
    shell.expect_exact("training_script.py")
    shell.close(force=True)

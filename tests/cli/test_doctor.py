"""`phalanx doctor` on this machine as it is, and made worse."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import leftovers
from tests.checks import Stopwatch

pytestmark = pytest.mark.slow

_COMMAND = [sys.executable, "-c", "from phalanx.cli.doctor import doctor; doctor(prog_name='phalanx doctor')"]


def _doctor(*arguments: str, limits: dict[int, int] | None = None, **environment: str) -> dict[str, Any]:
    """Run it with --json and return what it printed, with its exit code."""

    def limit() -> None:
        for which, soft in (limits or {}).items():
            resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))

    done = subprocess.run(
        [*_COMMAND, "--json", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit,
    )
    assert done.stderr == ""
    page: dict[str, Any] = json.loads(done.stdout)
    page["exit code"] = done.returncode
    assert page["ready"] == (done.returncode == 0)
    return page


def _finding(page: dict[str, Any], subject: str) -> dict[str, Any]:
    (found,) = [finding for finding in page["findings"] if finding["subject"] == subject]
    return dict(found)


def _statuses(page: dict[str, Any], topic: str) -> dict[str, str]:
    return {finding["subject"]: finding["status"] for finding in page["findings"] if finding["topic"] == topic}


def test_ranks_of_every_kind_pass_their_self_tests() -> None:
    page = _doctor()
    assert page["exit code"] == 0, page
    statuses = _statuses(page, "Self-tests")
    kinds = ["2 processes", "2 threads", "torch, phalanx", "killed rank", "view of a rank"]
    assert {kind: statuses[kind] for kind in kinds} == dict.fromkeys(kinds, "ok")
    assert statuses["torch, Gloo"] in ("ok", "note")  # a name server may be slow
    assert re.fullmatch(r"noticed by the other rank after \d+ ms", _finding(page, "killed rank")["text"])
    assert page["seconds"] > _finding(page, "2 processes")["seconds"] > 0


def test_without_self_tests_it_only_looks() -> None:
    page = _doctor("--no-self-test")
    assert page["exit code"] == 0
    assert _statuses(page, "Self-tests") == {}


def test_the_names_changed_in_torch_are_counted_and_listed_on_request() -> None:
    def show(*options: str) -> str:
        command = [*_COMMAND, "--no-self-test", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    page = " ".join(show().split())
    assert re.search(r"ok changes names of torch: import \d+, groups \d+, threads \d+", page)
    assert "Backend.PHALANX" not in page
    assert "torch.distributed.Backend.PHALANX" in show("--patches")


def test_a_torch_that_can_not_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: no such file')\n")
    page = _doctor(PYTHONPATH=str(tmp_path))
    assert page["exit code"] == 1
    found = _finding(page, "torch")
    assert found["text"] == (
        f"can't be imported: ImportError: libtorch_cpu.so: no such file; found at {tmp_path / 'torch.py'}"
    )
    assert _finding(page, "all")["text"] == "not run: no rank can start without torch"
    assert "Run `python -c 'import torch'`" in page["what_to_do"][0]


def test_a_torch_that_leaves_the_interpreter_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    page = _doctor("--no-self-test", PYTHONPATH=str(tmp_path))
    assert page["exit code"] == 1
    assert _statuses(page, "torch") == {"torch": "problem"}
    assert _finding(page, "torch")["text"].startswith("killed by SIGABRT")


def test_another_version_of_torch_is_noted(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '1.13.1'\n")
    found = _finding(_doctor("--no-self-test", PYTHONPATH=str(tmp_path)), "torch")
    assert found["status"] == "note"
    assert re.search(r"1\.13\.1.*phalanx is made for 2\.\d+ or newer, below 2\.\d+", found["text"])


def test_few_open_files_are_found_out_and_fail_the_self_tests() -> None:
    page = _doctor(limits={resource.RLIMIT_NOFILE: 16})
    assert page["exit code"] == 1
    assert _finding(page, "open files")["status"] == "problem"
    assert "Too many open files" in _finding(page, "2 processes")["text"]
    assert "limit of open files" in page["what_to_do"][0]


def test_a_small_address_space_is_the_reason_that_torch_does_not_load() -> None:
    page = _doctor(limits={resource.RLIMIT_AS: 300 << 20})
    assert page["exit code"] == 1
    assert _finding(page, "address space")["status"] == "note"
    assert _finding(page, "torch")["status"] == "problem"
    assert page["what_to_do"][0] == "Lift the limit of the address space with `ulimit -v unlimited`."


def test_a_launcher_that_hangs_is_noted_and_ended(tmp_path: Path) -> None:
    launcher, note = tmp_path / "mpiexec", tmp_path / "pids"
    launcher.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {note}\nsleep 600\n")
    launcher.chmod(0o755)
    watch = Stopwatch()
    page = _doctor("--no-self-test", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert watch.seconds() < 300, "the launcher itself takes 600 s"
    assert page["exit code"] == 0
    found = _finding(page, "mpiexec")
    assert (found["status"], found["text"]) == ("note", f"{launcher} does not answer within 4 s")
    assert _all_end(note)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_doctor_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    launcher, note = tmp_path / "mpiexec", tmp_path / "pids"
    launcher.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {note}.new\nmv {note}.new {note}\nsleep 600\n")
    launcher.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(_COMMAND, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as doctor:
        assert leftovers.wait_until(note.exists, 30)
        doctor.send_signal(number)
        assert doctor.wait(20) != 0
    assert _all_end(note)


def _all_end(note: Path) -> bool:
    folders = [Path("/proc") / pid for pid in note.read_text().split()]
    return leftovers.wait_until(lambda: not any(_is_alive(folder) for folder in folders))


def _is_alive(folder: Path) -> bool:
    try:
        return (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_empty_environment_will_do() -> None:
    done = subprocess.run(
        ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", *_COMMAND, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ready"] is True


@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal_it_has_colours_and_progress_in_80_columns(no_color: bool) -> None:
    pytest.importorskip("pexpect", reason="needs a terminal: pexpect is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    child = importlib.import_module("pexpect").spawn(
        _COMMAND[0],
        [*_COMMAND[1:], "--no-self-test"],
        env=environment | ({"NO_COLOR": "1"} if no_color else {}),
        dimensions=(40, 80),
        encoding="utf-8",
        timeout=60,
    )
    child.expect(importlib.import_module("pexpect").EOF)
    child.close()
    *progress, page = child.before.split("\r\x1b[K")
    assert "torch: torch" in progress
    assert ("\x1b[32mok     \x1b[0m" in page) is not no_color
    lines = re.sub(r"\x1b\[\d+m", "", page).splitlines()
    assert lines[0] == "Machine"
    assert max(map(len, lines)) <= 80
    assert child.exitstatus == 0


def test_without_a_terminal_the_page_is_plain() -> None:
    done = subprocess.run([*_COMMAND, "--no-self-test"], capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""

"""Run what a page shows, in a folder with the programs that its commands name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documents.blocks import ROOT, Block, blocks_before, whole_text

_PROGRAMS = ROOT / "tests/documents/programs"
_LONGEST_S = 150  # on a machine that does much else; conftest.py ends the whole run after 240 s


def prepare_folder(folder: Path) -> None:
    """Put into the folder the programs that many pages name, such as train.py, and the examples of the repository."""
    shutil.copytree(_PROGRAMS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "examples").symlink_to(ROOT / "examples")


def run_block(block: Block, folder: Path) -> tuple[int, str]:
    """Return the exit code of a command or program and what it has printed."""
    prepare_folder(folder)
    for other in blocks_before(block):
        if name := other.said("saved as"):
            (folder / name).write_text(other.text)
    program = folder / ("shown_block.sh" if block.language == "sh" else block.said("saved as") or "shown_block.py")
    program.write_text(whole_text(block))
    return run_command([*_interpreter(program.name), program.name], folder)


def run_symptom(name: str, folder: Path) -> str:
    """Return what a program of tests/documents/symptoms prints."""
    prepare_folder(folder)
    shutil.copy(ROOT / "tests/documents/symptoms" / name, folder)
    code, output = run_command([*_interpreter(name), name], folder)
    assert code == 0, output
    return output


def _interpreter(program: str) -> list[str]:
    return ["bash", "-euo", "pipefail"] if program.endswith(".sh") else [sys.executable]


def run_command(command: list[str], folder: Path) -> tuple[int, str]:
    """Return the exit code and the output. A command that takes too long fails."""
    result = subprocess.run(
        ["timeout", "--kill-after=10", str(_LONGEST_S), *command],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a user who has phalanx in an activated environment, but other flight records."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PHALANX_", "PYTEST_", "COV_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {"TMPDIR": str(folder), "PHALANX_RECORD_DIR": str(folder / "records")}
    return {**kept, **own, "PATH": path, "COLUMNS": "200"}


def lines_missing_in(output: str, shown: str) -> list[str]:
    """Return the shown lines that the output does not have after the line shown before.

    Numbers and paths may differ, and "..." stands for anything.
    """
    missing = []
    rest = iter(output.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        pattern = _pattern(line.strip())
        if line.strip() != "..." and not any(pattern.fullmatch(printed.strip()) for printed in rest):
            missing.append(line)
    return missing


def _pattern(line: str) -> re.Pattern[str]:
    pieces = (
        r"\S*".join(re.escape(part) for part in re.split(r"~?(?:/[\w.-]+){2,}", piece)) for piece in line.split("...")
    )
    text = ".*".join(pieces)
    return re.compile(re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", re.sub(r"(\\ )+", r"\\s+", text)))

"""The commands of ./dev, run by the Python that runs the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phalanx.settings import copy_environment

TOOLS = str(Path(__file__).resolve().parents[1] / "tools")
_LONGEST_S = 240


def dev(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `./dev` with these arguments."""
    return _run(["-m", "phalanx_tools", *arguments], variables)


def run_with_tools(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may import phalanx_tools."""
    return _run(["-c", program], {})


def _run(arguments: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = copy_environment(PYTHONPATH=TOOLS, **variables)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False)

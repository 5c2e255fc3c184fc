"""Programs that another user of this machine runs. Only root can start them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

UID = 65534

another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")


def _can_leave_its_users() -> bool:
    """Tell whether a program can be started in a user namespace of its own, in which nobody has a number."""
    try:
        return subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


user_namespaces = pytest.mark.skipif(not _can_leave_its_users(), reason="needs unshare and user namespaces")

# Python may be where another user can't read: so everything is imported first. A process that has changed its user
# counts as a privileged one until it says that it is not.
_BECOMES_ANOTHER = f"""
import ctypes, faulthandler, fcntl, json, os, pickle, signal, socket, stat, struct, subprocess, sys, time
{{imports}}
os.chdir("/")
os.setgroups([])
os.setresgid({UID}, {UID}, {UID})
os.setresuid({UID}, {UID}, {UID})
PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
"""


@contextlib.contextmanager
def started_as_another_user(program: str, *arguments: str, imports: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Start a Python program as another user, and end it whatever happens.

    Args:
        program: Its text; the modules it imports besides common ones must be given.
        arguments: Its arguments.
        imports: More to import.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _BECOMES_ANOTHER.format(imports=imports) + program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run_as_another_user(program: str, *arguments: str, imports: str = "") -> str:
    """Run a Python program as another user, and return what it printed."""
    with started_as_another_user(program, *arguments, imports=imports) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    return out.decode()


def let_others_in(folder: Path) -> None:
    """Open a temporary folder of pytest's, and those that pytest has made above it, to all users."""
    for each in (folder, *folder.parents):
        if each.stat().st_mode & 0o005 == 0o005:
            break
        each.chmod(0o755)
    if any(not each.stat().st_mode & 0o001 for each in folder.parents):
        pytest.skip(f"other users can't come to the folder for temporary files, {folder.parent}")


def read_line(process: subprocess.Popen[bytes]) -> str:
    """Read a line that the program prints.

    Raises:
        AssertionError: It ended without.
    """
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    assert line, _rest(process.stderr)
    return line


def give(process: subprocess.Popen[bytes], content: bytes) -> None:
    """Write all that the program reads from its standard input."""
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.close()
    process.stdin = None


def _rest(stream: IO[bytes] | None) -> str:
    return "" if stream is None else stream.read().decode()

"""SECURITY.md, "Whom phalanx trusts" and "What another local user can do": what it says is possible is possible."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.engine import create_group_segment
from phalanx.launch.meeting import address_of
from tests.jobs.launching import COMMAND, LIMIT_S, write_script
from tests.security.other_user import another_user, let_others_in, run_as_another_user

_CHANGES = """
import os, sys
from phalanx.diagnosis.memory_files import memory_files, open_memory_file
found = next(each for each in memory_files(int(sys.argv[1]), "phalanx:") if each.name == "phalanx:" + sys.argv[2])
descriptor = open_memory_file(found, is_writable=True)
print(os.pread(descriptor, 1 << 20, 0).count(sys.argv[2].encode()))
"""


@pytest.mark.slow
def test_another_process_of_the_same_user_can_open_the_memory_of_a_job() -> None:
    name = f"open {secrets.token_hex(4)}"
    group = create_group_segment(name, 2, crowd=2)
    program = [sys.executable, "-c", _CHANGES, str(os.getpid()), name]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert int(ended.stdout) >= 1, ended.stderr
    group.close_descriptor()


class _Code:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


def test_a_rank_can_run_code_on_the_other_ranks(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def program() -> None:
        group = phalanx.connect(timeout_s=60)
        group.broadcast_object(_Code(mark) if group.rank == 1 else None, root=1)

    phalanx.spawn(program, ranks=2, timeout_s=60)
    assert mark.exists()


@another_user
@pytest.mark.slow
def test_another_user_sees_the_command_line_and_the_names_of_sockets() -> None:
    address = address_of(f"a test|{secrets.token_hex(8)}")
    program = f"""
with open("/proc/{os.getpid()}/cmdline", "rb") as file:
    print(len(file.read()) > 0)
with open("/proc/net/unix") as file:
    print({address[1:].decode()!r} in file.read())
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as holder:
        holder.bind(address)
        assert run_as_another_user(program).split() == ["True", "True"]


@another_user
@pytest.mark.slow
@pytest.mark.parametrize(("umask", "is_shown"), [(0o022, True), (0o077, False)])
def test_the_umask_decides_whether_others_read_logs_and_traces(umask: int, is_shown: bool) -> None:
    with tempfile.TemporaryDirectory() as name:  # another pytest would close its own folder to others
        folder = Path(name)
        let_others_in(folder)
        script = write_script(folder, "import phalanx\nphalanx.connect().barrier()\nprint('done')\n")
        folders = [folder / "logs", folder / "trace"]
        command = [*COMMAND, "-n", "1", "--log-dir", str(folders[0]), "--trace", str(folders[1]), str(script)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, umask=umask, check=False)
        assert ended.returncode == 0, ended.stderr
        files = [str(path) for each in folders for path in each.rglob("*") if path.is_file()]
        assert len(files) > 3
        shown = run_as_another_user(_TRIES_TO_READ, *files).split()
    assert set(shown) == {str(is_shown)}


_TRIES_TO_READ = """
for path in sys.argv[1:]:
    try:
        open(path, "rb").close()
        print(True)
    except PermissionError:
        print(False)
"""

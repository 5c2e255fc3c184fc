"""What /proc tells of processes, whatever they are called."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from phalanx.diagnosis.processes import catches, parent_of, state_of


@pytest.mark.skipif(shutil.which("sleep") is None, reason="needs a program to start under another name")
def test_a_process_whose_name_the_kernel_cut_inside_a_character_is_described(tmp_path: Path) -> None:
    program = tmp_path / "a漢字漢字漢字"
    program.symlink_to(str(shutil.which("sleep")))
    with subprocess.Popen(["sleep", "60"], executable=program) as process:
        try:
            name = Path(f"/proc/{process.pid}/comm")
            while not name.read_bytes().startswith(b"a"):  # it has its new name a moment later
                assert process.poll() is None
            assert name.read_bytes() == "a漢字漢字漢".encode()[:15] + b"\n"
            assert state_of(process.pid) in ("R", "S", "D")
            assert parent_of(process.pid) == os.getpid()
            assert not catches(process.pid, signal.SIGRTMIN + 7)
        finally:
            process.kill()

"""Ending all that is left, tried in a process of its own: the test's children must not be ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import os, signal, subprocess, sys, time
from phalanx.launch.orphans import adopt_orphans, end_children, own_children

adopt_orphans()
kept = subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    for _ in range(3):  # orphans whose parents are gone, in sessions of their own; they can't be asked to end
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen(["sleep", "600"])
            os.write(1, b"x")
            time.sleep(600)
    time.sleep(0.2)
    os._exit(0)
tidy = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.05); print('tidied up')"])
os.wait()
end_children(keep={kept.pid})
assert own_children() == [kept.pid], own_children()
end_children()
assert own_children() == []
"""


@pytest.mark.slow
def test_orphans_are_adopted_and_ended_but_may_tidy_up_first() -> None:
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr
    assert "tidied up" in result.stdout

"""Ending all that is left, tried in a process of its own: the test's children must not be ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

_STUBBORN_ORPHANS = """
import os, signal, subprocess, time
from phalanx.launch.orphans import adopt_orphans, end_children, own_children

adopt_orphans()
kept = subprocess.Popen(["sleep", "600"])
started, starts = os.pipe()
parent = os.fork()
if parent == 0:
    for _ in range(3):  # orphans whose parent is gone, in sessions of their own; they can't be asked to end
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen(["sleep", "600"])
            os.write(starts, b"x")
            time.sleep(600)
    os._exit(0)
for _ in range(3):
    os.read(started, 1)
os.waitpid(parent, 0)
end_children(keep={kept.pid})
assert own_children() == [kept.pid], own_children()
end_children()
assert own_children() == []
"""

_TIDY_CHILD = """
import subprocess, sys
from phalanx.launch import orphans

orphans.{later} = 100.0
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "started\\n"
orphans.end_children()
print(child.stdout.read())
assert orphans.own_children() == []
"""

_ENDS_BY_ITSELF = """
print("started", flush=True)
import time
time.sleep(0.3)
print("tidied up")
"""

_ENDS_WHEN_ASKED = """
import signal, sys, time

def tidy_up(*_):
    print("tidied up")
    sys.exit()

signal.signal(signal.SIGTERM, tidy_up)
print("started", flush=True)
time.sleep(600)
"""


def _run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_orphans_are_adopted_and_ended() -> None:
    _run(_STUBBORN_ORPHANS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("child", "later"),
    [(_ENDS_BY_ITSELF, "ASK_AFTER_S"), (_ENDS_WHEN_ASKED, "KILL_AFTER_S")],
    ids=["before it is asked", "when it is asked"],
)
def test_a_child_may_tidy_up_first(child: str, later: str) -> None:
    """The step that would end it comes much later than usual, so that a busy machine gives it time enough."""
    assert "tidied up" in _run(_TIDY_CHILD.format(child=child, later=later))

"""Ctrl-C while ranks start, and threads that can't be started: the exception comes at once, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import phalanx
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.zygote_ranks import ZygoteRanks
from tests import leftovers
from tests.interrupts import interrupt_after, interrupt_before
from tests.run_ranks import run_ranks


def _meet_for_ever() -> None:
    group = phalanx.connect(timeout_s=60)
    while True:
        group.barrier()


@pytest.mark.parametrize(
    ("interrupt", "owner", "call"),
    [
        (interrupt_before, ZygoteRanks, "start"),
        (interrupt_after, ZygoteRanks, "start"),  # the ranks are being forked
        (interrupt_after, Supervisor, "listen_to"),
        (interrupt_before, ZygoteRanks, "read"),  # they are forked, but nobody has read their ids
        (interrupt_after, ZygoteRanks, "read"),
    ],
)
def test_ctrl_c_while_ranks_start_ends_them(
    monkeypatch: pytest.MonkeyPatch, interrupt: Callable[..., None], owner: type, call: str
) -> None:
    assert run_ranks("process", 1, abs, -1) == [1]  # starts the process that ranks are forked from
    before = leftovers.open_descriptors()
    with monkeypatch.context() as patch:
        interrupt(patch, owner, call)
        with pytest.raises(KeyboardInterrupt):
            run_ranks("process", 2, _meet_for_ever)
    assert len(leftovers.open_descriptors()) == len(before)
    assert leftovers.wait_until(lambda: not leftovers.rank_processes())
    assert run_ranks("process", 2, abs, -1) == [1, 1]


def _rank_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_ctrl_c_while_ranks_that_are_threads_start_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(patch, threading.Thread, "start")
        with pytest.raises(KeyboardInterrupt):
            run_ranks("thread", 3, _meet_for_ever)
    assert leftovers.wait_until(lambda: not _rank_threads())


def test_a_thread_that_can_not_be_started_is_an_error_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse_the_last(thread: threading.Thread) -> None:
        if thread.name == "rank 2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_the_last)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            run_ranks("thread", 3, _meet_for_ever)
    assert leftovers.wait_until(lambda: not _rank_threads())


_IMPORTS = """
import sys, phalanx

def program():
    before = set(sys.modules)
    phalanx.connect()
    return sorted(set(sys.modules) - before)

print(phalanx.spawn(program, ranks=1, kind="thread"))
"""


@pytest.mark.slow
def test_threads_import_nothing_to_connect() -> None:
    """An exception that ends a thread inside an import may leave Python's import lock taken for good."""
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[[]]\n", done.stderr

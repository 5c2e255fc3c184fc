"""pytest's debugger on a rank: the failing rank gets the terminal, the others are parked meanwhile."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from phalanx.testing.line import Line
from phalanx.testing.member import Member


class Debugger:
    """Both sides of it: pytest's process lends the terminal, a rank uses it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def on_rank(self, item: Any, line: Line) -> Callable[[Any, Any], None] | None:
        """Prepare a rank: `breakpoint()` works there, and with --pdb so does a failure.

        Returns:
            What to call with a failure; None when it shall not be debugged.
        """
        inner = sys.breakpointhook

        def breakpointhook(*args: Any, **kwargs: Any) -> Any:
            # pdb goes on by itself after its prompt: the terminal stays with this rank until the test ends.
            self._take_terminal(line)
            return inner(*args, **kwargs)

        sys.breakpointhook = breakpointhook
        if not self._config.getoption("usepdb", False):
            return None

        def debug(failure: Any, report: Any) -> None:
            self._take_terminal(line)
            from _pytest.debugging import _enter_pdb

            called: Any = pytest.CallInfo(None, failure, start=0.0, stop=0.0, duration=0.0, when="call", _ispytest=True)
            shown = pytest.TestReport.from_item_and_call(item, called)
            capturing = self._config.pluginmanager.getplugin("capturemanager")
            if capturing is not None:
                capturing.suspend_global_capture(in_=True)
            try:
                _enter_pdb(item, failure, shown)
            finally:
                line.notify("done")

        return debug

    def lend_terminal(self, member: Member) -> None:
        """Let a rank have the terminal until it is done or gone."""
        capturing = self._config.pluginmanager.getplugin("capturemanager")
        if capturing is not None:
            capturing.suspend_global_capture(in_=True)
        writer = self._config.get_terminal_writer()
        writer.line()
        writer.sep(">", f"rank {member.rank} has the terminal, the other ranks are parked")
        writer.flush()
        _give_foreground(member.pid)
        member.line.notify("yours")
        with selectors.DefaultSelector() as selector:
            selector.register(member.watch, selectors.EVENT_READ)
            selector.register(member.line.side, selectors.EVENT_READ)
            selector.select()
        if member.is_running():
            member.line.receive_notice()
        _give_foreground(os.getpgrp())
        if capturing is not None:
            capturing.resume_global_capture()

    def _take_terminal(self, line: Line) -> None:
        line.notify("interact")
        line.receive_notice()


def _give_foreground(group: int) -> None:
    """Make a process group the one that reads the terminal, if there is a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        pass  # not our terminal: whoever reads it, reads it
    finally:
        signal.signal(signal.SIGTTOU, before)
        os.close(terminal)

"""pytest's debugger on a rank: after a failure, while other ranks are stopped, or at a breakpoint, while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.debugging import _enter_pdb, pytestPDB

from phalanx.launch.connection import Connection
from phalanx.launch.terminal import give_foreground
from phalanx.testing.crew_rank import CrewRank


class Debugger:
    """Both sides of the debugger: pytest's process hands the terminal to a rank, which uses it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        invoked = config.pluginmanager.getplugin("pdbinvoke")
        if invoked is not None:
            config.pluginmanager.unregister(invoked)
            config.pluginmanager.register(_UnlessOnRanks(invoked), "pdbinvoke")

    def on_rank(self, item: Any, connection: Connection) -> Callable[[Any, Any], None] | None:
        """Prepare a rank: `breakpoint()` works there, and with --pdb so does a failure.

        Returns:
            The function to call with a failure; None if failures are not debugged.
        """
        has_terminal = False
        debugger: Any = pytestPDB

        def breakpointhook(*args: Any, **kwargs: Any) -> None:
            nonlocal has_terminal
            if not has_terminal:  # from now on, until the test ends
                _ask_for_terminal(connection, "breakpoint")
                has_terminal = True
            debugger._init_pdb("set_trace", *args, **kwargs).set_trace(sys._getframe().f_back)

        sys.breakpointhook = breakpointhook
        if not self._config.getoption("usepdb", False):
            return None

        def debug(failure: Any, report: Any) -> None:
            if not has_terminal and not _ask_for_terminal(connection, "post mortem"):
                return  # another rank has failed first
            called: Any = pytest.CallInfo(None, failure, start=0.0, stop=0.0, duration=0.0, when="call", _ispytest=True)
            shown = pytest.TestReport.from_item_and_call(item, called)
            if self._capturing is not None:
                self._capturing.suspend_global_capture(in_=True)
            try:
                _enter_pdb(item, failure, shown)
            except pytest.exit.Exception:
                report.wants_exit = True
            finally:
                if not has_terminal:
                    connection.send(("done",))

        return debug

    def hand_to(self, member: CrewRank) -> None:
        """Let a rank use the terminal."""
        if self._capturing is not None:
            self._capturing.suspend_global_capture(in_=True)
        writer = self._config.get_terminal_writer()
        writer.line()
        writer.sep(">", f"rank {member.number} has the terminal")
        writer.flush()
        give_foreground(member.pid)
        member.connection.send(("yours",))

    def take_back(self) -> None:
        """Use the terminal for pytest's own output again."""
        if self._capturing is not None:
            self._capturing.resume_global_capture()

    @property
    def _capturing(self) -> Any:
        return self._config.pluginmanager.getplugin("capturemanager")


def _ask_for_terminal(connection: Connection, why: str) -> bool:
    connection.send((why,))
    answer = connection.receive()
    return answer is not None and answer[0][0] == "yours"


class _UnlessOnRanks:
    """pytest's own debugger for all tests except those on ranks, which have nothing to debug in this process."""

    def __init__(self, invoked: Any) -> None:
        self._invoked = invoked

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Debug a failure of this process."""
        if node.get_closest_marker("ranks") is None or call.when != "call":
            self._invoked.pytest_exception_interact(node, call, report)

    def pytest_internalerror(self, excinfo: Any) -> None:
        """Debug pytest itself."""
        self._invoked.pytest_internalerror(excinfo)

"""`phalanx.breakpoint`: stop one rank in the debugger; the others wait for it without timing out."""

from __future__ import annotations

import contextlib
import io
import os
import pdb
import socket
import sys
import warnings
from types import FrameType
from typing import Any

from phalanx.errors import UsageError
from phalanx.groups.open_groups import open_groups
from phalanx.launch.claims import check_holder, claim_address
from phalanx.launch.context import current_context
from phalanx.launch.meeting import address_of
from phalanx.launch.run_name import name_of_run
from phalanx.launch.terminal import use_terminal
from phalanx.settings import read_placement, terminal_desk


def breakpoint(rank: int | None = None) -> None:
    """Stop one rank in the debugger: the given one, or the first rank that reaches this call.

    The other ranks continue until they need this one, and their operations do not time out meanwhile. `c` lets the rank
    continue, and `q` ends the rank and the job. Without a number, the same rank stops every time.

    Args:
        rank: The number of the rank in the world.

    Raises:
        UsageError: `rank` is not the number of a rank.
    """
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 0):
        raise UsageError(
            f"breakpoint: rank is {rank!r}; give the number of a rank, or nothing for the first rank that comes"
        )
    own, job = _own_place()
    if rank is not None and rank != own:
        return
    try:
        if rank is None and not _is_first(job):
            return
    except UsageError as error:
        warnings.warn(f"breakpoint on rank {own} skipped: {error}", RuntimeWarning, stacklevel=2)
        return
    frame = sys._getframe(1)
    if sys.breakpointhook is not sys.__breakpointhook__:  # another program, such as pytest, has its own debugger
        sys.breakpointhook()
        return
    debugger = _debugger_of(own)
    try:
        debugger.open()
    except UsageError as error:
        warnings.warn(f"breakpoint on rank {own} skipped: {error}", RuntimeWarning, stacklevel=2)
        return
    debugger.set_trace(frame)


def _own_place() -> tuple[int, str]:
    """Return the number of this rank, and a name that all ranks of its job share; empty if it is the only rank."""
    context = current_context()
    if context is not None:
        return context.rank, context.meeting
    placement = read_placement()
    return (0, "") if placement is None else (placement.rank, name_of_run(placement))


_claims: dict[str, socket.socket] = {}  # held until the process ends, so that the same rank stops every time
_others: set[str] = set()  # jobs in which another rank stops


def _is_first(job: str) -> bool:
    """Tell whether this rank is the one that stops.

    Raises:
        UsageError: Another user holds the name by which the ranks decide that.
    """
    if not job:
        return True
    context = current_context()
    number = context.rank if context is not None and context.is_thread else ""
    key = f"{job} {number}"
    if key in _claims:
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = address_of(f"breakpoint|{job}")
    if claim_address(claim, address):
        _claims[key] = claim
        return True
    claim.close()
    if job not in _others:
        check_holder(address, "breakpoint")
        _others.add(job)
    return False


_debuggers: dict[int, RankDebugger] = {}


def _debugger_of(rank: int) -> RankDebugger:
    """Return the debugger of a rank. There is one per rank, so that its breakpoints stay."""
    if rank not in _debuggers:
        _debuggers[rank] = RankDebugger(rank)
    return _debuggers[rank]


class RankDebugger(pdb.Pdb):
    """Python's debugger on the launcher's terminal, which it holds until the program continues."""

    def __init__(self, rank: int) -> None:
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True)
        self.prompt = f"(rank {rank}) "
        self.use_rawinput = False
        self._rank = rank
        self._terminal = contextlib.ExitStack()
        self._is_open = False

    def open(self) -> None:
        """Get the terminal.

        Raises:
            UsageError: There is none.
        """
        if self._is_open:
            return
        self._set_debugged(True)
        try:
            reader, writer = self._terminal.enter_context(use_terminal(terminal_desk()))
        except BaseException:
            self._set_debugged(False)
            raise
        self.stdin = self._terminal.enter_context(os.fdopen(reader, encoding="utf-8", closefd=False))
        self.stdout = self._terminal.enter_context(os.fdopen(writer, "w", encoding="utf-8", closefd=False))
        self._is_open = True
        title = f"rank {self._rank} (pid {os.getpid()}) has the terminal; c: go on, q: end the job"
        self.stdout.write(f"\n--- {title} ---\n")
        self.stdout.flush()

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """Get the terminal, then read and run commands."""
        self.open()
        super().interaction(frame, traceback)

    def set_continue(self) -> None:
        """Let the program continue, and give the terminal back."""
        super().set_continue()
        self._release()

    def set_quit(self) -> None:
        """End the program."""
        super().set_quit()
        self._release()
        raise SystemExit(f"rank {self._rank} was ended in the debugger")

    def _release(self) -> None:
        if self._is_open:
            self._is_open = False
            self.stdout.flush()
            self._terminal.close()
            self._set_debugged(False)

    def _set_debugged(self, is_debugged: bool) -> None:
        for group in open_groups():
            group._set_debugged(is_debugged)

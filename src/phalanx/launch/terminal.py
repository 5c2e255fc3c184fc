"""The terminal of a job, which ranks that are debugged use one after the other.

    rank  --connect-->  desk (the launcher)     the rank waits
          <--"yours"--                          the launcher shows nothing meanwhile
          --close-->                            done, or dead: the next rank gets it

If no launcher hands out the terminal, the ranks of a session use the name of a socket as a lock.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import termios
from collections.abc import Callable, Iterator
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.claims import wait_for_address
from phalanx.launch.meeting import address_of, is_same_user
from phalanx.launch.user_secret import make_private

_YOURS = b"yours"
_RETRY_S = 0.05


class TerminalTurns:
    """Which rank has the terminal, and which ranks wait for it. Not for several threads.

    Args:
        pause: Called before a rank gets the terminal.
        resume: Called when it is free again.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause, self._resume = pause, resume
        self.owner: object | None = None
        self._waiting: list[tuple[object, Callable[[], None]]] = []
        self._foreground = -1
        self._attributes: list[Any] = []

    def ask(self, who: object, begin: Callable[[], None]) -> None:
        """Call `begin` when the terminal is free for `who`."""
        self._waiting.append((who, begin))
        self._pass_on()

    def end(self, who: object) -> None:
        """Take the terminal back from `who`, or remove `who` from the queue."""
        self._waiting = [each for each in self._waiting if each[0] is not who]
        if who is not self.owner:
            return
        give_foreground(self._foreground)
        set_terminal_attributes(self._attributes)  # a rank that died has not reset them
        self._resume()
        self.owner = None
        self._pass_on()

    def _pass_on(self) -> None:
        if self.owner is None and self._waiting:
            self.owner, begin = self._waiting.pop(0)
            self._pause()
            self._foreground, self._attributes = foreground_group(), terminal_attributes()
            begin()


class TerminalDesk:
    """Where ranks of a job ask their launcher for the terminal. Not for several threads.

    Args:
        pause: Called before a rank gets the terminal.
        resume: Called when it is free again.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.name = f"phalanx-terminal-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(4096)
        self._turns = TerminalTurns(pause, resume)
        self._rank: socket.socket | None = None  # the connection of the rank that has the terminal

    def descriptor(self) -> int:
        """Return a descriptor that becomes readable when serve() has something to do."""
        return (self._rank or self._listener).fileno()

    @property
    def is_taken(self) -> bool:
        """Whether a rank has the terminal."""
        return self._rank is not None

    def serve(self) -> None:
        """Let the next rank have the terminal, or take it back."""
        if self._rank is not None:
            self._rank.close()
            ended, self._rank = self._rank, None
            return self._turns.end(ended)
        rank, _ = self._listener.accept()
        if not is_same_user(rank):
            return rank.close()
        self._rank = rank
        self._turns.ask(rank, self._tell)

    def _tell(self) -> None:
        assert self._rank is not None
        with contextlib.suppress(OSError):
            self._rank.send(_YOURS)

    def close(self) -> None:
        """Take the terminal back for good."""
        if self._rank is not None:
            self.serve()
        self._listener.close()


@contextlib.contextmanager
def use_terminal(desk: str) -> Iterator[tuple[int, int]]:
    """Wait for the terminal, and yield descriptors to read from it and to write to it.

    Args:
        desk: The address of the launcher's desk; empty if no launcher hands out a terminal.

    Raises:
        UsageError: There is no terminal.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise UsageError("there is no terminal to debug in") from None
    try:
        with _turn(desk):
            before, attributes = foreground_group(), terminal_attributes()
            give_foreground(os.getpgrp())
            set_terminal_attributes(_without_suspending(attributes))
            try:
                yield terminal, terminal
            finally:
                set_terminal_attributes(attributes)
                give_foreground(before)
    finally:
        os.close(terminal)


@contextlib.contextmanager
def _turn(desk: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        if desk:
            try:
                connection.connect(f"\0{desk}")
                answer = connection.recv(len(_YOURS)) if is_same_user(connection) else b""
            except OSError as error:
                raise UsageError(f"the launcher does not let ranks use its terminal: {error}") from None
            if answer != _YOURS:
                raise UsageError("the launcher does not let ranks use its terminal")
        else:
            name = make_private(f"terminal of session {os.getsid(0)}")
            wait_for_address(connection, address_of(name), "the turn at the terminal")
        yield


def terminal_attributes() -> list[Any]:
    """Return the attributes of the terminal; empty if there is none."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return termios.tcgetattr(terminal.fileno())
    except (OSError, termios.error):
        return []


def set_terminal_attributes(attributes: list[Any]) -> None:
    """Set the attributes of the terminal, if there is one."""
    if not attributes:
        return
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            termios.tcsetattr(terminal.fileno(), termios.TCSADRAIN, attributes)
    except (OSError, termios.error):
        pass  # it is not our terminal any more
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _without_suspending(attributes: list[Any]) -> list[Any]:
    """Disable Ctrl-Z. It would stop the rank, but not its launcher, so no shell could resume them."""
    if not attributes:
        return []
    characters = list(attributes[6])
    characters[termios.VSUSP] = b"\0"
    return [*attributes[:6], characters]


def foreground_group() -> int:
    """Return the process group that may read the terminal; -1 when there is none."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno())
    except OSError:
        return -1


def give_foreground(group: int) -> None:
    """Let a process group read the terminal, if there is one."""
    if group <= 0:
        return
    # The kernel stops a background process that calls tcsetpgrp, unless it blocks SIGTTOU.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with open("/dev/tty", "rb") as terminal:
            os.tcsetpgrp(terminal.fileno(), group)
    except OSError:
        pass  # it is not our terminal, or the group has ended: the foreground stays as it is
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)

"""Signals to the launcher, as a descriptor that its event loop can wait for."""

from __future__ import annotations

import signal
import socket
from types import TracebackType

TAKEN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects signals while it is open. Ignored signals stay ignored, as under nohup."""

    def __enter__(self) -> SignalInbox:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous = {
            number: signal.signal(number, _note_only)
            for number in TAKEN_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal has arrived."""
        return self._reader.fileno()

    def read(self) -> list[signal.Signals]:
        """Return the signals that have arrived since the last call."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in TAKEN_SIGNALS]


def _note_only(*_: object) -> None:
    """Do nothing: the signal is read from the descriptor."""

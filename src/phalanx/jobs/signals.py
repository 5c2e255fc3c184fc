"""Signals to the launcher, as something that can be waited for beside everything else."""

from __future__ import annotations

import signal
import socket
from types import TracebackType

TAKEN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects signals while it is open. Those that were ignored before stay so, as under nohup."""

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
        """Return what can be read when a signal has come."""
        return self._reader.fileno()

    def read(self) -> list[signal.Signals]:
        """Return the signals that have come since the last time."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in TAKEN_SIGNALS]


def _note_only(*_: object) -> None:
    """Let the inbox do the rest."""

"""Waiting for everything at once: ranks' output, signals, messages, and streams that can be written again."""

from __future__ import annotations

import functools
import selectors
from collections.abc import Callable, Sequence

from phalanx.jobs.logs import Logs
from phalanx.jobs.streams import Stream
from phalanx.jobs.view import View


class Loop:
    """Calls back when a descriptor can be read, and moves output from ranks to the view.

    While the view wants no more, ranks are not read, and so they wait too: nothing piles up here.
    """

    def __init__(self, view: View, logs: Logs | None) -> None:
        self._view = view
        self._logs = logs
        self._selector = selectors.PollSelector()  # unlike epoll it takes files, which stdout may be
        self._streams: list[Stream] = []

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()

    def on(self, descriptor: int, act: Callable[[], None]) -> None:
        """Call `act` whenever a descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def off(self, descriptor: int) -> None:
        """Wait for it no longer."""
        self._selector.unregister(descriptor)

    def waits_for(self, descriptor: int) -> bool:
        """Tell whether a descriptor is waited for."""
        return descriptor in self._selector.get_map()

    def add_streams(self, streams: Sequence[Stream]) -> None:
        """Show what ranks print from now on."""
        self._streams = list(streams)

    def show_progress(self) -> None:
        """Show lines that are not finished."""
        for stream in self._streams:
            stream.show_progress(self._view)

    def turn(self, patience_s: float) -> None:
        """Wait for something to happen, or for that time to pass, and see to it."""
        for writer in self._view.writers():
            self._await_writer(writer.descriptor, writer.is_waiting(), writer.write_some)
        self._set_reading(not self._view.is_full())
        for key, _ in self._selector.select(patience_s):
            if self.waits_for(key.fd):  # it may be gone because of one before it
                key.data()

    def _await_writer(self, descriptor: int, is_waiting: bool, act: Callable[[], None]) -> None:
        if is_waiting and not self.waits_for(descriptor):
            self._selector.register(descriptor, selectors.EVENT_WRITE, act)
        elif not is_waiting and self.waits_for(descriptor):
            self._selector.unregister(descriptor)

    def _set_reading(self, is_reading: bool) -> None:
        for stream in self._streams:
            if is_reading and not self.waits_for(stream.descriptor):
                self.on(stream.descriptor, functools.partial(self._read, stream))
            elif not is_reading and self.waits_for(stream.descriptor):
                self.off(stream.descriptor)

    def _read(self, stream: Stream) -> None:
        if not stream.read(self._view, self._logs):
            self.off(stream.descriptor)
            self._streams.remove(stream)

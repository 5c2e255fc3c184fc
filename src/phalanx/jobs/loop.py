"""The event loop of the launcher, which also moves the output of ranks to the view."""

from __future__ import annotations

import functools
import selectors
from collections.abc import Callable, Sequence

from phalanx.jobs.logs import Logs
from phalanx.jobs.streams import RankStream
from phalanx.jobs.view import View
from phalanx.launch.loop import Loop


class OutputLoop(Loop):
    """A loop that also moves the output of ranks to the view.

    While the view is full, the loop does not read from ranks, so they wait and no output piles up here.
    """

    def __init__(self, view: View, logs: Logs | None) -> None:
        super().__init__()
        self._view = view
        self._logs = logs
        self._streams: list[RankStream] = []

    def add_streams(self, streams: Sequence[RankStream]) -> None:
        """Show the output of these streams from now on."""
        self._streams = list(streams)

    def show_progress(self) -> None:
        """Show unfinished lines."""
        for stream in self._streams:
            stream.show_progress(self._view)

    def turn(self, patience_s: float | None) -> None:
        """Wait for an event, or until the time has passed, and handle it."""
        for writer in self._view.writers():
            self._await_writer(writer.descriptor, writer.is_waiting(), writer.write_some)
        self._set_reading(not self._view.is_full())
        super().turn(patience_s)

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

    def _read(self, stream: RankStream) -> None:
        if not stream.read(self._view, self._logs):
            self.off(stream.descriptor)
            self._streams.remove(stream)

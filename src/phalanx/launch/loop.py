"""Waiting for everything at once: it calls back when a descriptor can be read."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Loop:
    """Descriptors, and what to do when they can be read. Not for several threads."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # unlike epoll it takes files, which stdout may be

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()

    def on(self, descriptor: int, act: Callable[[], object]) -> None:
        """Call `act` whenever a descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def off(self, descriptor: int) -> None:
        """Wait for it no longer, if it was waited for."""
        if self.waits_for(descriptor):
            self._selector.unregister(descriptor)

    def waits_for(self, descriptor: int) -> bool:
        """Tell whether a descriptor is waited for."""
        return descriptor in self._selector.get_map()

    def turn(self, patience_s: float | None) -> None:
        """Wait for something to happen, or for that time to pass, and see to it."""
        for key, _ in self._selector.select(patience_s):
            if self.waits_for(key.fd):  # it may be gone because of one before it
                key.data()

"""Wait for several descriptors at once, and call back when one can be read."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Loop:
    """Descriptors, and the functions to call when they can be read. Not for several threads."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # unlike epoll it takes files, which stdout may be

    def close(self) -> None:
        """Remove all descriptors."""
        self._selector.close()

    def on(self, descriptor: int, act: Callable[[], object]) -> None:
        """Call `act` whenever a descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def off(self, descriptor: int) -> None:
        """Remove a descriptor, if it is there."""
        if self.waits_for(descriptor):
            self._selector.unregister(descriptor)

    def waits_for(self, descriptor: int) -> bool:
        """Tell whether the loop waits for a descriptor."""
        return descriptor in self._selector.get_map()

    def turn(self, patience_s: float | None) -> None:
        """Wait until descriptors can be read, at most that long, and call their functions."""
        for key, _ in self._selector.select(patience_s):
            if self.waits_for(key.fd):  # an earlier function may have removed it
                key.data()

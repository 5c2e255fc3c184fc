"""Wait for one descriptor of any number: select() supports only those below 1024."""

from __future__ import annotations

import select


def is_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Wait until a descriptor can be read or is at its end, at most that long (None: for ever); tell whether it is."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))

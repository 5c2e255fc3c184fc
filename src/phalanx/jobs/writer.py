"""Write to a stream of the launcher without waiting for its reader."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections import deque

_ENOUGH_BYTES = 1 << 18
_PIPE_PIECE_BYTES = 4096  # a writable pipe or terminal takes this much at once
_FILE_PIECE_BYTES = 1 << 20


class Writer:
    """A queue in front of a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_broken = False  # the reader is gone
        self._is_useless = False  # the descriptor can't be written
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._piece_bytes = _FILE_PIECE_BYTES if is_file else _PIPE_PIECE_BYTES

    def put(self, data: bytes) -> None:
        """Add whole lines, and write as much as possible at once."""
        if not self._is_useless:
            self._queue.append(data)
            self._queued_bytes += len(data)
            self.write_some()

    def is_waiting(self) -> bool:
        """Tell whether there is unwritten output."""
        return bool(self._queue)

    def is_full(self) -> bool:
        """Tell whether the queue is full."""
        return self.is_waiting() and self._queued_bytes > _ENOUGH_BYTES

    def write_some(self, timeout_s: float = 0) -> None:
        """Write until the descriptor takes no more, or the queue is empty.

        Args:
            timeout_s: How long to wait until the descriptor is writable.
        """
        try:
            while self._queue and self._poll.poll(timeout_s * 1000):
                data = self._queue.popleft()
                num_written = os.write(self.descriptor, data[: self._piece_bytes])
                self._queued_bytes -= num_written
                if num_written < len(data):
                    self._queue.appendleft(data[num_written:])
        except BrokenPipeError:
            self.is_broken = self._is_useless = True
            self._queue.clear()
        except OSError as error:
            self._is_useless = True
            self._queue.clear()
            with contextlib.suppress(OSError):
                os.write(2, f"phalanx run: output is lost from here on: {error.strerror}\n".encode())

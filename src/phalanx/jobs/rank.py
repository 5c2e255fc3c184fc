"""A rank as the launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from phalanx.jobs.notes import Note

State = Literal["starting", "running", "waiting", "done", "failed", "freed", "ended"]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(eq=False)
class Rank:
    """One rank, from before it is forked until after it has ended.

    Attributes:
        number: Which one.
        pid: Its process, or 0.
        pidfd: A handle of that process, or -1.
        note: What it told before it ended badly.
        status: How it ended: exit code, or 256 + signal.
        failed_at: When it was known that it fails, by itself or because of another.
        sent: The signals that the launcher has sent it.
        doing: The operation it is in, or "".
        waits_for: The ranks it waits for there.
        num_operations: How many it has called.
        moved_bytes: How much they have moved.
        operations_per_s: How many of late.
        bytes_per_s: How much of late.
        memory_bytes: What it has in memory.
        last_line: What it printed last.
    """

    number: int
    pid: int = 0
    pidfd: int = -1
    note: Note | None = None
    status: int | None = None
    failed_at: float | None = None
    sent: list[signal.Signals] = field(default_factory=list)
    doing: str = ""
    waits_for: tuple[int, ...] = ()
    num_operations: int = 0
    moved_bytes: int = 0
    operations_per_s: float = 0.0
    bytes_per_s: float = 0.0
    memory_bytes: int = 0
    last_line: bytes = b""

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.pid != 0 and self.status is None

    @property
    def is_culprit(self) -> bool:
        """Whether it has failed, and not because another rank had."""
        return self.failed_at is not None and not (self.note is not None and self.note.is_consequence)

    @property
    def state(self) -> State:
        """Where it stands, in a word."""
        if self.pid == 0:
            return "starting"
        if self.failed_at is not None:
            return "failed" if self.is_culprit else "freed"
        if self.status is not None:
            return "done" if self.status == 0 else "ended"
        return "waiting" if self.waits_for else "running"

    @property
    def exit_code(self) -> int:
        """What it would have ended with as a program of its own."""
        if self.note is not None:
            return self.note.exit_code
        status = self.status or 0
        return status if status < 256 else 128 + status - 256

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.is_running and self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
                self.sent.append(number)

    def measure_memory(self) -> None:
        """Look how much memory it has."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            self.memory_bytes = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def fail(self) -> None:
        """Note when it failed, the first time; what it does when it was told to end is no failure."""
        if self.failed_at is None and not self.sent:
            self.failed_at = time.monotonic()

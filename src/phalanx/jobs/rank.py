"""A rank as `phalanx run` sees it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx.engine.facts import EntryFacts
from phalanx.jobs.notes import Note
from phalanx.launch.rank import Rank

State = Literal["starting", "running", "waiting", "done", "failed", "freed", "ended"]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(eq=False)
class JobRank(Rank):
    """One rank of a job, with what the table of ranks shows of it.

    Attributes:
        note: The note that it sent before it failed.
        has_shown: Whether its traceback is on the terminal.
        doing: The operation it is in.
        place: The line of its program that it was at when the launcher asked.
        waits_for: The ranks that it waits for.
        num_operations: How many operations it has called.
        moved_bytes: How many bytes they have moved.
        operations_per_s: Its current rate of operations.
        bytes_per_s: Its current rate of bytes.
        memory_bytes: The memory that it uses.
        last_line: The last line that it printed.
    """

    note: Note | None = None
    has_shown: bool = False
    doing: EntryFacts | None = None
    place: str = ""
    waits_for: tuple[int, ...] = ()
    num_operations: int = 0
    moved_bytes: int = 0
    operations_per_s: float = 0.0
    bytes_per_s: float = 0.0
    memory_bytes: int = 0
    last_line: bytes = b""

    @property
    def state(self) -> State:
        """Its state, in a word."""
        if self.pid == 0:
            return "starting"
        if self.failed_at is not None:
            return "failed" if self.is_culprit else "freed"
        if self.status is not None:
            return "done" if self.status == 0 else "ended"
        return "waiting" if self.waits_for else "running"

    @property
    def exit_code(self) -> int:
        """The exit code that a shell would show for it."""
        if self.note is not None:
            return self.note.exit_code
        status = self.status or 0
        return status if status < 256 else 128 + status - 256

    def measure_memory(self) -> None:
        """Measure how much memory it uses."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            self.memory_bytes = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

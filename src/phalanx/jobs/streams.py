"""The pipes of the ranks of an attempt: their output, and what they say when they fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from phalanx.jobs.logs import Logs
from phalanx.jobs.output import LineSplitter
from phalanx.jobs.rank import JobRank
from phalanx.jobs.view import View

_READ_BYTES = 1 << 16


@dataclass(eq=False)
class RankStream:
    """The launcher's end of stdout or stderr of a rank."""

    rank: JobRank
    is_error: bool
    descriptor: int
    splitter: LineSplitter = field(default_factory=LineSplitter)
    shown: bytes = b""  # the unfinished line as it was last shown

    def read(self, view: View, logs: Logs | None) -> bool:
        """Read and show the available output; return whether more may come."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if logs is not None:
            logs.write(self.rank.number, self.is_error, data)
        self._show(self.splitter.feed(data) if data else self.splitter.finish(), view)
        return bool(data)

    def read_all(self, view: View, logs: Logs | None) -> None:
        """Read and show everything that has been written until now."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, _READ_BYTES):
                if logs is not None:
                    logs.write(self.rank.number, self.is_error, data)
                self._show(self.splitter.feed(data), view)

    def drain(self, view: View, logs: Logs | None) -> None:
        """Read the rest when no process can write any more."""
        self.read_all(view, logs)
        self._show(self.splitter.finish(), view)

    def show_progress(self, view: View) -> None:
        """Show the unfinished line if it has changed."""
        pending = self.splitter.pending()
        if pending.strip() and pending != self.shown:
            self.shown = self.rank.last_line = pending
        if pending:
            view.show_progress(self.rank.number, self.is_error, pending, self.splitter.is_rewritten)

    def _show(self, lines: Sequence[bytes], view: View) -> None:
        if lines:
            self.rank.last_line = lines[-1]
            view.show_lines(self.rank.number, self.is_error, lines)


@dataclass
class Pipes:
    """All pipes of the ranks of an attempt.

    Attributes:
        streams: The output of ranks.
        failures: The pipe of each rank's failure, in rank order.
        theirs: The ranks' ends: stdout, stderr and failure of each, in rank order.
    """

    streams: list[RankStream]
    failures: list[int]
    theirs: list[int]

    def close_theirs(self) -> None:
        """Close the ranks' ends in this process, after the ranks have received theirs."""
        while self.theirs:
            os.close(self.theirs.pop())


@contextlib.contextmanager
def open_pipes(ranks: Sequence[JobRank]) -> Iterator[Pipes]:
    """Make the pipes, and close them at the end."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for _ in ranks:
            for _ in range(3):
                reader, writer = os.pipe()
                os.set_blocking(reader, False)
                ours.append(reader)
                theirs.append(writer)
        streams = [
            RankStream(rank, is_error, ours[3 * rank.index + is_error]) for rank in ranks for is_error in (False, True)
        ]
        yield Pipes(streams, ours[2::3], theirs)
    finally:
        for descriptor in (*ours, *theirs):
            os.close(descriptor)


def open_stdin() -> int:
    """Return the standard input of ranks: that of the launcher, or nothing if that is a terminal.

    Each rank has its own process group, and the kernel stops such a group if it reads from the terminal.
    """
    return os.open(os.devnull, os.O_RDONLY) if os.isatty(0) else os.dup(0)

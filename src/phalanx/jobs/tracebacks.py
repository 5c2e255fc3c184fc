"""Which tracebacks the terminal shows, and where the others go.

The terminal shows those of the ranks that failed by themselves, each distinct one once. Ranks that failed only because
of another rank are quiet. What every failed rank has printed goes to its log; if it can't, the terminal shows it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.jobs.early_ends import find_early
from phalanx.jobs.failure_output import FailureOutput
from phalanx.jobs.kept_output import KeptOutput
from phalanx.jobs.logs import Logs
from phalanx.jobs.notes import Note
from phalanx.jobs.output import LineSplitter, without_own_number
from phalanx.jobs.rank import JobRank
from phalanx.jobs.streams import Pipes
from phalanx.jobs.view import View
from phalanx.launch.rank import first_culprit

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_READ_BYTES = 1 << 16
_MOST_SHOWN = 3
_MOST_WAITING_BYTES = 1 << 24  # of all ranks, before their notes have come
_LEAST_WAITING_BYTES = 1 << 17  # of each rank


class Tracebacks:
    """The pipes of the failures of an attempt's ranks.

    Args:
        ranks: All ranks.
        pipes: Their pipes.
        view: Shows tracebacks.
        logs: The logs that the user has asked for, or None.
        kept: Takes everything if there are no logs.
    """

    def __init__(
        self,
        ranks: Sequence[JobRank],
        pipes: Pipes,
        view: View,
        logs: Logs | None,
        kept: KeptOutput,
    ) -> None:
        self._ranks = ranks
        self._pipes = pipes
        self._view = view
        self._logs = logs
        self._kept = kept
        self._outputs = [FailureOutput() for _ in ranks]
        self._splitters = [LineSplitter() for _ in ranks]
        self._most_bytes = max(_LEAST_WAITING_BYTES, _MOST_WAITING_BYTES // len(ranks))
        self._given_up: set[int] = set()  # ranks that printed too much to be held back
        self._shown: set[str] = set()  # the identities of the tracebacks that were shown

    def read(self, rank: JobRank) -> bool:
        """Read what has come from a rank; return whether more may come."""
        output = self._outputs[rank.index]
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipes.failures[rank.index], _READ_BYTES):
                output.feed(data)
                if output.num_waiting_bytes > self._most_bytes:
                    self._give_up(rank)
            return False
        return True

    def note_of(self, rank: JobRank) -> Note | None:
        """Return the note of a rank, if it has come."""
        return self._outputs[rank.index].note

    def settle(self, rank: JobRank) -> None:
        """Keep what a rank printed about its failure; show it if this is the first rank that failed by itself.

        If ranks made different calls, the ranks that come later decide which of them is wrong.
        """
        is_needed = not self._keep_printed(rank) or rank.number in self._given_up
        if is_needed or (rank.is_culprit and rank.disagreement is None and not self._shown):
            self._show(rank, in_any_case=is_needed)

    def pass_on(self, rank: JobRank) -> None:
        """Keep what a rank still writes after its note; show it if the rank failed by itself."""
        later = self._outputs[rank.index].take_later()
        if later and (not self._keep(rank, later) or rank.is_culprit):
            self._show_text(rank, later)

    def finish(self, *, is_elsewhere: bool = False, seen: Observation | None = None) -> None:
        """Show what has to be shown now that all ranks have ended.

        Args:
            seen: What was seen when the first of them failed.
            is_elsewhere: Whether another host is to blame; ranks that failed because of it are quiet then.
        """
        for rank in self._ranks:
            if self.note_of(rank) is None and self._outputs[rank.index].printed:  # it was killed while it printed
                self._keep_printed(rank)
                self._show(rank)
        culprits = [rank for rank in self._ranks if rank.is_culprit]
        first = first_culprit(self._ranks)
        is_quiet = is_elsewhere or bool(find_early(self._ranks, seen))
        for rank in culprits or ([] if first is None or is_quiet else [first]):
            if len(self._shown) < _MOST_SHOWN:
                self._show(rank)
        for rank, splitter in zip(self._ranks, self._splitters, strict=True):
            self._show_lines(rank, splitter.finish())

    def _keep_printed(self, rank: JobRank) -> bool:
        for stream in self._pipes.streams[2 * rank.index : 2 * rank.index + 2]:  # what it wrote before its failure
            stream.read_all(self._view, self._logs)
        return self._keep(rank, self._outputs[rank.index].printed)

    def _keep(self, rank: JobRank, data: bytes) -> bool:
        if not data:
            return True
        if self._logs is None:
            return self._kept.write(rank.number, data)
        self._logs.write(rank.number, True, data)
        return True

    def _show(self, rank: JobRank, *, in_any_case: bool = False) -> None:
        """Show a traceback, unless an equal one was shown, or the summary will have all that it says."""
        output = self._outputs[rank.index]
        identity = output.note.identity if output.note is not None else f"rank {rank.number}"
        has_details = output.note is not None and bool(output.note.details)
        is_needed = identity not in self._shown and not has_details
        if output.printed and not rank.has_shown and (is_needed or in_any_case):
            self._shown.add(identity)
            rank.has_shown = True
            self._show_text(rank, output.shown())

    def _give_up(self, rank: JobRank) -> None:
        """Show a part of what a rank prints before its note, because it is too long to be held back."""
        output = self._outputs[rank.index]
        part = output.take_early(_READ_BYTES)
        self._given_up.add(rank.number)
        self._keep(rank, part)
        self._show_text(rank, part)

    def _show_text(self, rank: JobRank, text: bytes) -> None:
        for start in range(0, len(text), _READ_BYTES):  # the view takes what is read at once, not megabytes
            self._show_lines(rank, self._splitters[rank.index].feed(text[start : start + _READ_BYTES]))

    def _show_lines(self, rank: JobRank, lines: Sequence[bytes]) -> None:
        if lines:
            self._view.show_lines(rank.number, True, without_own_number(rank.number, lines))

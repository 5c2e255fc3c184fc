"""A failed test as pytest shows it: a line with the ranks that failed, each distinct failure once, and the output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from _pytest._code.code import TerminalRepr

from phalanx.diagnosis import formatting
from phalanx.testing.ending import Ending
from phalanx.testing.verdict import Failure, Verdict

_THREAD = re.compile(r"[Tt]hread 0x[0-9a-f]+")
_CHILD = re.compile(r"^its child pid (\d+), ", re.MULTILINE)


class RanksShown(TerminalRepr):
    """The ranks' failures, which pytest's report shows instead of a traceback."""

    def __init__(self, verdict: Verdict, notes: Sequence[str] = (), *, is_full: bool = False) -> None:
        self._verdict = verdict
        self._notes = notes
        self._is_full = is_full  # whether to show the calls inside phalanx, torch, pytest and Python
        self.reprcrash = _Crash(verdict.summary(), verdict.failures[0].endings[0])

    def toterminal(self, tw: Any) -> None:
        """Write it."""
        verdict = self._verdict
        for failure in verdict.failures:
            tw.line(
                f"{formatting.rank_list(failure.ranks)} of {verdict.num_ranks}: {failure.title}", red=True, bold=True
            )
        by_text: dict[str, list[int]] = {}
        for rank, text in verdict.bystanders:
            by_text.setdefault(text, []).append(rank)
        for text, ranks in by_text.items():
            tw.line(f"{formatting.rank_list(ranks)}: {text}", yellow=True)
        for failure in verdict.failures:
            self._show_failure(tw, failure)
        for ending in verdict.endings:
            if ending.stacks and not any(ending in failure.endings for failure in verdict.failures):
                tw.sep("-", f"rank {ending.rank}, where it was ended")
                tw.line(self._stacks_of(ending))
        for note in self._notes:
            if note.startswith("Explanation:"):  # Hypothesis's explanation knows only the lines of this process
                break
            if not self._is_shown(note):
                tw.line(note)

    def _is_shown(self, note: str) -> bool:
        """Tell whether a rank's failure shows this note of its exception already."""
        reports = [failure.endings[0].report for failure in self._verdict.failures]
        texts = [str(report.shown) for report in reports if report is not None]
        return any(all(line.strip() in text for line in note.splitlines()) for text in texts)

    def _show_failure(self, tw: Any, failure: Failure) -> None:
        if not any(ending.stacks or (ending.report and ending.report.shown) for ending in failure.endings):
            return
        tw.sep("-", formatting.rank_list(failure.ranks))
        first = failure.endings[0]
        if first.report is not None and first.report.shown is not None:
            _show(tw, first.report.shown)
        by_stacks: dict[str, list[Ending]] = {}
        for ending in failure.endings:
            if ending.stacks:
                alike = _CHILD.sub("its child, ", _THREAD.sub("thread", self._stacks_of(ending)))
                by_stacks.setdefault(alike, []).append(ending)
        for endings in by_stacks.values():
            self._show_stacks(tw, endings)
        shown = first.report.headline if first.report is not None else ""
        others = [ending for ending in failure.endings[1:] if ending.report and ending.report.headline != shown]
        for ending in others:
            assert ending.report is not None
            tw.line(f"rank {ending.rank}: {ending.report.headline}", red=True)

    def _show_stacks(self, tw: Any, endings: Sequence[Ending]) -> None:
        """Show the stacks of ranks whose stacks are equal but for the numbers of threads and children."""
        stacks = _THREAD.sub("thread", _with_all_children([self._stacks_of(ending) for ending in endings]))
        place, colon, rest = stacks.partition(":\n")
        ranks = formatting.rank_list(ending.rank for ending in endings)
        if place.startswith("at ") and colon:
            ranks, stacks = f"{ranks}, {place}", rest
        tw.line(f"{ranks}:", bold=True)
        tw.line(stacks)

    def _stacks_of(self, ending: Ending) -> str:
        return ending.full_stacks if self._is_full else ending.stacks


def _with_all_children(stacks: Sequence[str]) -> str:
    """Return the first of some stacks that differ in the children's process ids, with the ids of all."""
    if len(stacks) == 1:
        return stacks[0]
    alike = zip(*(_CHILD.findall(text) for text in stacks), strict=True)
    return _CHILD.sub(lambda _: f"their children pid {', '.join(next(alike))}, ", stacks[0])


class _Crash:
    """The short form, for pytest's summary line."""

    def __init__(self, message: str, first: Ending) -> None:
        self.message = message
        place = first.report.place if first.report is not None else ""
        self.path, _, line = place.rpartition(":")
        self.lineno = int(line) if line.isdigit() else 0

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}" if self.path else self.message


def _show(tw: Any, shown: Any) -> None:
    if hasattr(shown, "toterminal"):
        shown.toterminal(tw)
    else:
        tw.line(str(shown))


def output_sections(endings: Sequence[Ending]) -> list[tuple[str, str, str]]:
    """Return what the ranks printed and logged: stream, ranks and text. Ranks with the same output share one."""
    sections: list[tuple[str, str, str]] = []
    for stream in ("stdout", "stderr", "log"):
        by_text: dict[str, list[int]] = {}
        for ending in endings:
            text = _said(ending, stream)
            if text.strip():
                by_text.setdefault(text, []).append(ending.rank)
        sections += [(stream, f"call of {formatting.rank_list(ranks)}", text) for text, ranks in by_text.items()]
    return sections


def _said(ending: Ending, stream: str) -> str:
    if stream == "log":
        return ending.report.log if ending.report is not None else ""
    return ending.out if stream == "stdout" else ending.err

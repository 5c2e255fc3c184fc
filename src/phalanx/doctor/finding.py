"""Probes, which ask the machine one question each, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "problem", "absent"]

USUAL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What one probe found.

    Attributes:
        status: "problem" if ranks can't run because of it, "absent" if it is not there and is not needed.
        text: The facts.
        advice: A sentence that says what to do, or "".
        seconds: How long a self-test took.
        count: How many things the text lists, if a page may show this number instead.
    """

    status: Status
    text: str
    advice: str = ""
    seconds: float | None = None
    count: int | None = None


@dataclass(frozen=True)
class Probe:
    """One question to the machine.

    Attributes:
        subject: What it is about, in a word or two.
        ask: Finds out. It may raise, hang or crash, because it runs in a process of its own; it must be picklable.
        timeout_s: How long it may take.
        is_needed: Whether ranks can't run if it fails.
        advice_when_lost: What to do when it raises, hangs or crashes.
    """

    subject: str
    ask: Callable[[], Answer]
    timeout_s: float = USUAL_TIMEOUT_S
    is_needed: bool = True
    advice_when_lost: str = ""

    def lost(self, why: str, advice: str = "") -> Answer:
        """Make the answer for a probe that gave none. Other advice replaces the usual one."""
        return Answer("problem" if self.is_needed else "note", why, advice or self.advice_when_lost)


@dataclass(frozen=True)
class Topic:
    """Probes that belong together. They share a process.

    Attributes:
        title: The heading.
        probes: In the order in which they are asked.
        is_chain: Whether a problem makes those behind it pointless.
    """

    title: str
    probes: tuple[Probe, ...]
    is_chain: bool = False


@dataclass(frozen=True)
class Finding:
    """An answer, with what it is about."""

    topic: str
    subject: str
    status: Status
    text: str
    advice: str = ""
    seconds: float | None = None
    count: int | None = None


def first_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""What the doctor asks, and what it hears."""

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
        status: "problem" when ranks can't run because of it, "absent" for what is not there and need not be.
        text: The facts, in words.
        advice: A sentence that says what to do, or "".
        seconds: How long a self-test took.
    """

    status: Status
    text: str
    advice: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Probe:
    """One question to the machine.

    Attributes:
        subject: What it is about, in a word or two.
        ask: Finds out. May raise, hang or crash: it runs in a process of its own.
        timeout_s: How long it may take.
        is_needed: Whether ranks can't run without an answer.
        advice_when_lost: What to do when it raises, hangs or crashes.
    """

    subject: str
    ask: Callable[[], Answer]
    timeout_s: float = USUAL_TIMEOUT_S
    is_needed: bool = True
    advice_when_lost: str = ""

    def lost(self, why: str, advice: str = "") -> Answer:
        """Make the answer of a probe that gave none; with better advice than the usual, if there is any."""
        return Answer("problem" if self.is_needed else "note", why, advice or self.advice_when_lost)


@dataclass(frozen=True)
class Topic:
    """Probes that belong together. They share a process, which finds them by import.

    Attributes:
        title: The heading.
        home: The module that has this topic as TOPIC.
        probes: In the order in which they are asked.
        is_chain: Whether a problem makes those behind it pointless.
    """

    title: str
    home: str
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


def first_line(error: BaseException) -> str:
    """Say in a line what was raised."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def in_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

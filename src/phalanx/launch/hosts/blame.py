"""Which rank or host is to blame when a job on several hosts fails: one verdict for an attempt, the same on all hosts.

Pure objects: the caller says what time it is, and nothing waits here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.hosts.cards import HostCard, host_title

BEAT_S = 0.25
SILENCE_S = 3.0
_PATIENCE_S = 0.5  # with failures that are only consequences, until their cause comes
_LATE_S = 0.5  # a loop that is so late was not awake, and can't judge others


@dataclass(frozen=True)
class AttemptVerdict:
    """What is to blame, or what a host says is.

    Attributes:
        text: One line for people.
        host: The number of the host.
        exit_code: The exit code of all launchers.
        rank: The rank, if it is one.
        is_consequence: Whether this is only the consequence of something else.
        is_lost: Whether the host can't start ranks any more.
        is_final: Whether the job was ended on purpose, so that there is no restart.
    """

    text: str
    host: int
    exit_code: int = 1
    rank: int | None = None
    is_consequence: bool = False
    is_lost: bool = False
    is_final: bool = False

    @property
    def may_restart(self) -> bool:
        """Whether all hosts could start their ranks again."""
        return not self.is_lost and not self.is_final

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> AttemptVerdict:
        """Read what to_json() returned.

        Raises:
            UsageError: The value is no verdict.
        """
        kinds = {"text": (str,), "host": (int,), "exit_code": (int,), "rank": (int, type(None))} | dict.fromkeys(
            ("is_consequence", "is_lost", "is_final"), (bool,)
        )
        if not isinstance(value, dict) or any(type(value.get(name)) not in kind for name, kind in kinds.items()):
            raise UsageError("this is no verdict")
        return AttemptVerdict(**{name: value[name] for name in kinds})


class Judge:
    """Decides on the verdict of one attempt.

    Attributes:
        verdict: The verdict, once there is one. It never changes.
    """

    def __init__(self) -> None:
        self.verdict: AttemptVerdict | None = None
        self._heard: list[AttemptVerdict] = []
        self._due_at = float("inf")

    @property
    def due_at(self) -> float:
        """When to call decide(), if nothing else is heard before."""
        return float("inf") if self.verdict is not None else self._due_at

    def hear(self, candidate: AttemptVerdict, now: float) -> None:
        """Take into account what a host says."""
        if not self._heard:
            self._due_at = now + _PATIENCE_S
        self._heard.append(candidate)
        if not candidate.is_consequence:
            self._due_at = now

    def decide(self, now: float) -> AttemptVerdict | None:
        """Return the verdict if this call has made it."""
        if self.verdict is not None or now < self._due_at:
            return None
        # The first of those that are to blame; if there is none, the first.
        self.verdict = min(self._heard, key=lambda each: each.is_consequence)
        return self.verdict


class AwakeClock:
    """A clock that stands still while this process does not run: nobody was silent only because nobody listened."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()
        self._missed_s = 0.0

    def tick(self) -> float:
        """Return the time; to be called at least once for each beat."""
        now = self._now()
        if now - self._last > BEAT_S + _LATE_S:
            self._missed_s += now - self._last - BEAT_S
        self._last = now
        return now - self._missed_s


def describe_silence(
    cards: Sequence[HostCard], silent: Sequence[int], listener: int, *, is_alone: bool
) -> AttemptVerdict:
    """Say which hosts have been silent for too long.

    Args:
        cards: All hosts.
        silent: The numbers of those that are silent.
        listener: The number of the host that has noticed it.
        is_alone: Whether no other host is left.
    """
    names = " and ".join(host_title(cards, number) for number in silent)
    here = f"host {listener} ({cards[listener].name})"
    verb, they = ("have", "they are") if len(silent) > 1 else ("has", "it is")
    cut_off = f", or {here} is cut off" if is_alone and len(silent) > 1 else ""
    return AttemptVerdict(
        f"{names} {verb} been silent for {SILENCE_S:g} s: {they} down, or the network between "
        f"{'them' if len(silent) > 1 else 'it'} and {here} is{cut_off}",
        silent[0],
        is_lost=True,
    )


def describe_lost_launcher(cards: Sequence[HostCard], number: int) -> AttemptVerdict:
    """Say that the launcher of a host has died, or what watches the host in place of a launcher of phalanx."""
    who = "the process that watches it" if cards[number].ranks else "its launcher"
    text = f"{host_title(cards, number)}: {who} (pid {cards[number].pid}) has died"
    return AttemptVerdict(text, number, 137, is_lost=True)

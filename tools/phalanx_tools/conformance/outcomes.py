"""How tests ended, and what is said about a run of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        name: The test.
        status: "passed", "skipped" or "failed".
        reason: Why, unless it passed.
        seconds: How long it took.
    """

    name: str
    status: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """All outcomes of one run.

    Attributes:
        mode: How the tests were run.
        place: What they ran on, such as "world 4".
    """

    mode: str
    place: str
    outcomes: tuple[Outcome, ...]
    seconds: float

    def with_status(self, status: str) -> list[Outcome]:
        """Return the outcomes of one kind."""
        return [outcome for outcome in self.outcomes if outcome.status == status]

    def num_passed(self) -> int:
        """Return how many tests passed."""
        return len(self.with_status("passed"))

    def skip_reasons(self) -> list[tuple[str, int]]:
        """Return why tests were skipped, the most frequent reason first."""
        return Counter(outcome.reason for outcome in self.with_status("skipped")).most_common()

    def summary(self) -> str:
        """Return the last line."""
        passed, skipped, failed = (len(self.with_status(status)) for status in ("passed", "skipped", "failed"))
        return (
            f"upstream {self.mode} {self.place}: {passed} passed, {skipped} skipped, {failed} failed "
            f"in {self.seconds:.0f} s"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return {"summary": self.summary(), **asdict(self)}

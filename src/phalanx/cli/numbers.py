"""Numbers on the command line, with errors that say in plain words which numbers are possible."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A time in seconds.

    Attributes:
        hint: What else to say about a value that is refused.
    """

    def __init__(self, min: float, *, min_open: bool = False, hint: str = "") -> None:
        super().__init__(min, min_open=min_open)
        self.hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it.

        Raises:
            click.BadParameter: It is not such a number.
        """
        try:
            seconds: float = super().convert(value, param, ctx)
        except click.BadParameter:
            seconds = math.nan
        if math.isnan(seconds):  # click takes nan for a number in every range
            least = "more than" if self.min_open else "at least"
            self.fail(f"give a number of seconds, {least} {self.min:g}, not {str(value)!r}{self.hint}", param, ctx)
        return seconds


class WholeNumber(click.IntRange):
    """A whole number that is not too small, and perhaps not too large."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it.

        Raises:
            click.BadParameter: It is not such a number.
        """
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            which = f"at least {self.min}" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(f"give a whole number, {which}, not {str(value)!r}", param, ctx)
        return number

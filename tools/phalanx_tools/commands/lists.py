"""Options whose values are lists with commas."""

from __future__ import annotations

from collections.abc import Callable

import click


def names_of(*allowed: str) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Return the callback of an option that takes some of these names."""

    def parse(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in allowed:
                raise click.BadParameter(f"{name!r} is not one of {', '.join(allowed)}")
        if not names:
            raise click.BadParameter("give at least one")
        return names

    return parse


def positive_numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    """Read whole numbers above 0; the callback of an option."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers") from None
    if any(number < 1 for number in numbers):
        raise click.BadParameter("give numbers above 0")
    return numbers

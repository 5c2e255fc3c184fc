"""What a launcher says while it waits for other hosts: who is missing, and the command to type there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.cards import HostCard, missing_numbers

_NUMBER = "--node-rank"
_OF_ONE_HOST = (_NUMBER, "--local-addr")  # options whose values belong to one host only
_MOST_COMMANDS = 3


class Command(NamedTuple):
    """How the job was started on this host.

    Attributes:
        options: The words up to the program; () if nobody types it.
        program: The program and its arguments.
    """

    options: Sequence[str]
    program: Sequence[str]

    def for_host(self, number: int | None) -> str:
        """Return the command for another host, as one types it; `number` is None if that host may get any."""
        words: list[str] = []
        is_value = False
        for word in self.options:
            name, equals, _ = word.partition("=")
            if is_value or name.replace("_", "-") in _OF_ONE_HOST:
                is_value = not is_value and not equals
            else:
                words.append(word)
        given = [] if number is None else [_NUMBER, str(number)]
        return shlex.join([*words, *given, *self.program])


def describe_no_server(endpoint: Endpoint, why: str, command: Command) -> str:
    """Say that nobody listens at the endpoint."""
    if not command.options:
        return f"waiting for {endpoint} ({why})"
    number = 0 if any(word.replace("_", "-").startswith(_NUMBER) for word in command.options) else None
    return f"waiting for {endpoint} ({why}); on {endpoint.host}, type\n    {command.for_host(number)}"


def describe_missing(cards: Sequence[HostCard], num_hosts: int, command: Command) -> str:
    """Say which hosts have not come."""
    here = ", ".join(card.title for card in cards)
    missing = num_hosts - len(cards)
    numbers: Sequence[int | None] = missing_numbers(cards, num_hosts)
    which = f" (--node-rank {', '.join(map(str, numbers))})" if numbers else ""
    where = "on the other" if missing == 1 else "on each of the others"
    commands = [command.for_host(number) for number in numbers[:_MOST_COMMANDS] or [None]]
    if cards and all(card.address.startswith("127.") for card in cards):
        where = f"only this machine reaches {cards[0].address}; {where}"
    headline = f"waiting for {missing} of {num_hosts} hosts{which}; here: {here}"
    if not command.options:
        return headline
    headline += f"; {where}, type"
    return "\n    ".join([headline, *commands])

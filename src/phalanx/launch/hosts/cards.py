"""The hosts of a job: what each says about itself, which of them do not belong together, and which number each gets.

Pure functions and objects: no waiting, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.diagnosis.formatting import rank_list, visible
from phalanx.errors import UsageError


@dataclass(frozen=True)
class HostCard:
    """What a host says about itself.

    Attributes:
        name: Its host name.
        address: Its address, as other hosts reach it.
        pid: The process of its launcher.
        num_ranks: How many ranks it starts.
        number: The number that the user gave it; None if it may get any.
        num_hosts: How many hosts it expects.
        job_id: The job that it belongs to.
        max_restarts: How often it would restart its ranks.
        port: A free port of this host, for MASTER_PORT.
        versions: The versions of phalanx, torch and others that must be alike.
        ranks: The numbers of its ranks, if another launcher has chosen them; () if the order of the hosts does.
    """

    name: str
    address: str
    pid: int
    num_ranks: int
    number: int | None
    num_hosts: int
    job_id: str
    max_restarts: int
    port: int
    versions: dict[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> HostCard:
        """Read what to_json() returned.

        Raises:
            UsageError: The value is no card.
        """
        kinds = {"name": str, "address": str, "job_id": str} | dict.fromkeys(
            ("pid", "num_ranks", "num_hosts", "max_restarts", "port"), int
        )
        is_card = isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in kinds.items())
        if not is_card or type(value.get("number")) not in (int, type(None)):
            raise UsageError("this is no card of a host")
        versions = value.get("versions")
        if not isinstance(versions, dict) or not all(isinstance(text, str) for text in versions.values()):
            raise UsageError("this is no card of a host")
        ranks = value.get("ranks", [])
        if not isinstance(ranks, (list, tuple)) or not all(type(rank) is int for rank in ranks):
            raise UsageError("this is no card of a host")
        fields: dict[str, Any] = {
            name: visible(value[name]) if kind is str else value[name] for name, kind in kinds.items()
        }
        return HostCard(**fields, number=value["number"], versions=versions, ranks=tuple(ranks))

    @property
    def title(self) -> str:
        """Its name and address."""
        return self.name if self.name == self.address else f"{self.name} ({self.address})"


class RefusedHostError(Exception):
    """A host can't take part; the text says why."""


class Seats:
    """The hosts that have come to a job so far.

    Args:
        own: The card of the host that keeps the list. It gets its seat even if others come before it.

    Attributes:
        own: The same.
        cards: The cards of the hosts that have come.
    """

    def __init__(self, own: HostCard) -> None:
        self.own = own
        self.cards: list[HostCard] = []

    @property
    def num_hosts(self) -> int:
        """How many hosts the job has."""
        return self.own.num_hosts

    @property
    def is_complete(self) -> bool:
        """Whether all hosts have come."""
        return len(self.cards) == self.num_hosts

    def admit(self, card: HostCard) -> None:
        """Add a host.

        Raises:
            RefusedHostError: It does not belong to this job, or there is no place for it.
        """
        for check in (self._check_job, self._check_versions, self._check_number):
            check(card)
        self.cards.insert(0 if card == self.own else len(self.cards), card)

    def leave(self, card: HostCard) -> None:
        """Remove a host that has gone."""
        self.cards.remove(card)

    def in_order(self) -> list[HostCard]:
        """Return the cards by the numbers of the hosts: those that were given; the rest as they came."""
        return order(self.cards)

    def _check_job(self, card: HostCard) -> None:
        own, here = self.own, f"on {self.own.title}"
        if card.job_id != own.job_id:
            raise RefusedHostError(
                f'it belongs to job "{visible(card.job_id)}", and "{own.job_id}" meets {here}; give both the same '
                "--rdzv-id, or each job an endpoint of its own"
            )
        if card.num_hosts != own.num_hosts:
            raise RefusedHostError(f"it was started with --nnodes {card.num_hosts}, and {own.num_hosts} {here}")
        if card.max_restarts != own.max_restarts:
            raise RefusedHostError(f"it was started with --restart {card.max_restarts}, and {own.max_restarts} {here}")

    def _check_versions(self, card: HostCard) -> None:
        for name, version in self.own.versions.items():
            theirs = card.versions.get(name, "no version")
            if theirs != version:
                raise RefusedHostError(
                    f"it has {name} {visible(theirs)}, and {self.own.title} has {name} {version}; "
                    "install the same version on all hosts"
                )

    def _check_number(self, card: HostCard) -> None:
        num_others = sum(each != self.own for each in self.cards)
        if card != self.own and num_others == self.num_hosts - 1:
            names = ", ".join(each.title for each in self.cards)
            raise RefusedHostError(f"all {self.num_hosts} hosts of the job are there already: {names}")
        if card.number is None:
            return
        if not 0 <= card.number < self.num_hosts:
            raise RefusedHostError(f"it has --node-rank {card.number}; give 0 to {self.num_hosts - 1}")
        for other in self.cards:
            if other.number == card.number:
                raise RefusedHostError(f"it has --node-rank {card.number}, and so has {other.title}")


def order(cards: Sequence[HostCard]) -> list[HostCard]:
    """Return cards by the numbers of the hosts: those that were given; the rest take what is free, as they came."""
    given = {card.number: card for card in cards if card.number is not None}
    rest = iter([card for card in cards if card.number is None])
    return [given[number] if number in given else next(rest) for number in range(len(cards))]


def missing_numbers(cards: Iterable[HostCard], num_hosts: int) -> list[int]:
    """Return the numbers that no host has asked for, if hosts that come are given numbers; else nothing."""
    given = {card.number for card in cards}
    return [] if None in given else [number for number in range(num_hosts) if number not in given]


@dataclass(frozen=True)
class JobHosts:
    """All hosts of a job, in order, and which of them this is.

    Attributes:
        cards: Their cards.
        number: The number of this host.
    """

    cards: tuple[HostCard, ...]
    number: int

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.cards)

    @property
    def num_ranks(self) -> int:
        """How many ranks all hosts have."""
        return sum(card.num_ranks for card in self.cards)

    @property
    def first_rank(self) -> int:
        """The number of the first rank of this host."""
        return first_rank_of(self.cards, self.number)

    def title(self, number: int) -> str:
        """Name a host for people."""
        return host_title(self.cards, number)


def first_rank_of(cards: Sequence[HostCard], number: int) -> int:
    """Return the number of the first rank of a host."""
    return sum(card.num_ranks for card in cards[:number])


def host_title(cards: Sequence[HostCard], number: int) -> str:
    """Name a host for people, with its ranks."""
    first = first_rank_of(cards, number)
    ranks = cards[number].ranks or range(first, first + cards[number].num_ranks)
    return f"host {number} ({cards[number].name}, {rank_list(ranks)})"

"""What a host says about itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.hosts.addresses import address_of_card

_PACKAGES = ("phalanx", "torch", "numpy")
_CARDS = Path("/sys/class/net")


@dataclass(frozen=True)
class HostFacts:
    """The facts about a host that others compare with theirs.

    Attributes:
        name: Its host name.
        address: The address at which others reach it.
        port: The port at which it answers others, at that address.
        word: What others must say there first.
        card: The network card that has the address, or "".
        card_mbit: The speed that the card's driver tells; 0 if it does not.
        card_mtu: The largest packet of the card; 0 if unknown.
        machine: What only processes of the same machine and network have in common.
        versions: The versions of Python and of packages, "" for those that are missing.
    """

    name: str
    address: str
    port: int
    word: str
    card: str
    card_mbit: int
    card_mtu: int
    machine: str
    versions: dict[str, str]

    @property
    def title(self) -> str:
        """Its name and address."""
        return f"{self.name} ({self.address})"

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> HostFacts:
        """Read what to_json() returned.

        Raises:
            UsageError: The value holds no such facts.
        """
        kinds: dict[str, type] = dict.fromkeys(("name", "address", "word", "card", "machine"), str)
        kinds |= dict.fromkeys(("port", "card_mbit", "card_mtu"), int) | {"versions": dict}
        if not isinstance(value, dict) or any(type(value.get(name)) is not kind for name, kind in kinds.items()):
            raise UsageError("these are no facts about a host")
        if not all(isinstance(text, str) for text in value["versions"].values()):
            raise UsageError("these are no facts about a host")
        return HostFacts(**{name: value[name] for name in kinds})


def gather_facts(name: str, address: str, port: int, word: str) -> HostFacts:
    """Collect the facts about this host; none of it imports torch."""
    card = _card_with(address)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return HostFacts(
        name,
        address,
        port,
        word,
        card,
        max(0, _read_number(card, "speed")),
        max(0, _read_number(card, "mtu")),
        f"{boot}:{os.stat('/proc/self/ns/net').st_ino}",
        {"Python": platform.python_version()} | {package: _version_of(package) for package in _PACKAGES},
    )


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _card_with(address: str) -> str:
    """Return the network card with an IPv4 address, or "" if none is found."""
    return next((card for _, card in socket.if_nameindex() if address_of_card(card) == address), "")


def _read_number(card: str, what: str) -> int:
    try:
        return int((_CARDS / card / what).read_text())
    except (OSError, ValueError):  # no card, or its driver does not say
        return 0

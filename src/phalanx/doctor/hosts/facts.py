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
_INTERFACES = Path("/sys/class/net")


@dataclass(frozen=True)
class HostFacts:
    """The facts about a host that others compare with theirs.

    Attributes:
        name: Its host name.
        address: The address at which others reach it.
        port: The port at which it answers others, at that address.
        word: What others must say there first.
        interface: The network interface that has the address, or "".
        interface_mbit: The speed that the interface's driver tells; 0 if it does not.
        interface_mtu: The largest packet of the interface; 0 if unknown.
        machine: What only processes of the same machine and network have in common.
        versions: The versions of Python and of packages, "" for those that are missing.
    """

    name: str
    address: str
    port: int
    word: str
    interface: str
    interface_mbit: int
    interface_mtu: int
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
        kinds: dict[str, type] = dict.fromkeys(("name", "address", "word", "interface", "machine"), str)
        kinds |= dict.fromkeys(("port", "interface_mbit", "interface_mtu"), int) | {"versions": dict}
        if not isinstance(value, dict) or any(type(value.get(name)) is not kind for name, kind in kinds.items()):
            raise UsageError("the other host has not described itself as expected")
        if not all(isinstance(text, str) for text in value["versions"].values()):
            raise UsageError("the other host has not described itself as expected")
        return HostFacts(**{name: value[name] for name in kinds})


def gather_facts(name: str, address: str, port: int, word: str) -> HostFacts:
    """Collect the facts about this host; none of it imports torch."""
    interface = _interface_with(address)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return HostFacts(
        name,
        address,
        port,
        word,
        interface,
        max(0, _read_number(interface, "speed")),
        max(0, _read_number(interface, "mtu")),
        f"{boot}:{os.stat('/proc/self/ns/net').st_ino}",
        {"Python": platform.python_version()} | {package: _version_of(package) for package in _PACKAGES},
    )


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _interface_with(address: str) -> str:
    """Return the network interface with an IPv4 address, or "" if none is found."""
    return next((interface for _, interface in socket.if_nameindex() if address_of_card(interface) == address), "")


def _read_number(interface: str, what: str) -> int:
    try:
        return int((_INTERFACES / interface / what).read_text())
    except (OSError, ValueError):  # no interface, or its driver does not say
        return 0

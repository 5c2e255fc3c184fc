"""Find out which addresses the names of hosts resolve to on this host."""

from __future__ import annotations

import ipaddress
import socket

from phalanx.doctor.finding import Finding
from phalanx.launch.hosts.addresses import Endpoint


def look_up_endpoint(topic: str, endpoint: Endpoint, own_name: str) -> Finding:
    """Find out whether the name of the endpoint resolves to an address of the network."""
    subject = "name of endpoint"
    addresses = _addresses_of(endpoint.host)
    if not addresses:
        return Finding(
            topic, subject, "problem", f"{endpoint.host}: this name is unknown on {own_name}",
            f"Give the address instead of {endpoint.host}, or add the name to DNS or to /etc/hosts of every host.",
        )  # fmt: skip
    text = f"{endpoint.host} is {', '.join(addresses)}"
    if not all(map(_is_loopback, addresses)) or endpoint.host == own_name:
        return Finding(topic, subject, "ok", text)
    return Finding(
        topic, subject, "problem", f"{text}: an address that each host uses for itself",
        "Give the name or address at which other hosts reach that host.",
    )  # fmt: skip


def look_up_own_name(topic: str, own_name: str, own_address: str) -> Finding:
    """Find out whether this host's own name resolves to the address at which others reach it."""
    subject = "own name"
    addresses = _addresses_of(own_name)
    text = f"{own_name} is {', '.join(addresses) or 'unknown'}"
    if own_address in addresses:
        return Finding(topic, subject, "ok", text)
    where = f"others reach it at {own_address}"
    why = "; Debian's installer writes this to /etc/hosts" if addresses[:1] == ["127.0.1.1"] else ""
    return Finding(
        topic, subject, "note",
        f"{text}, and {where}{why}. phalanx does not need the name; Gloo and MPI without phalanx do",
        f"Let {own_name} be {own_address} in /etc/hosts of {own_name} if you use Gloo or MPI without phalanx.",
    )  # fmt: skip


def _addresses_of(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback

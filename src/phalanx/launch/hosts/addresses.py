"""Addresses of hosts: where the hosts of a job meet, which of them listens there, and how others reach this host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from typing import NamedTuple

from phalanx.errors import UsageError

DEFAULT_PORT = 29500
_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1"  # reserved for documentation: the route there is the default route, and no packet is sent


class Endpoint(NamedTuple):
    """Where the hosts of a job meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Read HOST, HOST:PORT or [ADDRESS]:PORT.

    Raises:
        UsageError: There is no host, or the port is not possible.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text.strip(), str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f'"{text}" is no place to meet; give HOST:PORT, such as node0:{DEFAULT_PORT}')
    return Endpoint(host, int(port))


def listen_at(endpoint: Endpoint, own_address: str = "", *, is_told: bool = False) -> socket.socket | None:
    """Listen at an endpoint if it is on this host; return None if it is on another host, or somebody listens there.

    Args:
        endpoint: Where.
        own_address: The address that others reach this host at, if the user has said it.
        is_told: Whether the user has said that this is host 0: it then listens at its own address if nobody can listen
            at the endpoint's, as that of a service in a cluster.

    Raises:
        UsageError: The name of the host is unknown.
    """
    for address in _addresses_of(endpoint):
        target = _outward(address, own_address) if _is_own_name(endpoint.host, address) else address
        listener = _try_listen(target, endpoint.port)
        if isinstance(listener, socket.socket):
            return listener
        if listener == errno.EADDRINUSE:
            return None
    if is_told:
        listener = _try_listen(own_address or find_own_address(endpoint), endpoint.port)
        return listener if isinstance(listener, socket.socket) else None
    return None


def find_own_address(endpoint: Endpoint) -> str:
    """Return the address that this host has on the way to an endpoint. No packet is sent."""
    for address in _addresses_of(endpoint):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, endpoint.port))
            own = str(probe.getsockname()[0])
            return _outward(own, "") if _is_own_name(endpoint.host, own) else own
    return "127.0.0.1"


def claim_port(address: str) -> socket.socket:
    """Reserve a free port while the socket is open; ranks may bind it too.

    Raises:
        OSError: The address is not one of this host.
    """
    claim = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        claim.bind((address, 0))
    except OSError:
        claim.close()
        raise
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return claim


def _addresses_of(endpoint: Endpoint) -> list[str]:
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{endpoint.host}: this name is unknown here ({getattr(error, 'strerror', None) or error})\n"
            "  do       give the address of that host, or add its name to DNS or /etc/hosts of every host"
        ) from None
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _is_own_name(name: str, address: str) -> bool:
    """Tell whether a name stands for this host's loopback address, as its own name does on Debian (127.0.1.1)."""
    return address.startswith("127.") and name != "localhost" and not name.startswith("127.")


def _outward(address: str, own_address: str) -> str:
    """Return the address that other hosts can reach, instead of a loopback address."""
    if own_address:
        return own_address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    return next((each for each in _card_addresses() if not each.startswith("127.")), address)


def _card_addresses() -> list[str]:
    """Return the IPv4 addresses of the network cards."""
    return [address for _, name in socket.if_nameindex() if (address := address_of_card(name))]


def address_of_card(name: str) -> str:
    """Return the IPv4 address of a network card, or ""."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _try_listen(address: str, port: int) -> socket.socket | int:
    """Listen there; return the number of the error if that is not possible."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        return error.errno or errno.EINVAL
    return listener

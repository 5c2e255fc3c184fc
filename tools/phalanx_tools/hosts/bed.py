"""A bed: several hosts on one machine, as Linux namespaces, with a network that can be made slow, or broken.

    with hosts(2, rate="1gbit", delay_us=100) as bed:
        bed[1].run("getent", "hosts", "host0")
        bed[1].cut()

Each host has its own network, process ids, host name, /etc/hosts, /proc, /sys and /dev/shm. They share the other files
and the machine's cores and memory. Host 0 is called host0 and has the address 10.77.0.1, and so on; several beds do
not see each other. It needs root, a C compiler and iproute2: see requirements.py. The machine's own network is never
touched.

Nothing is left when the block ends, or when the process dies in any way: see keeper.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx_tools.hosts.host import Host, python_command
from phalanx_tools.hosts.switch import Switch, compile_switch

NETWORK = "10.77.0"
NETWORK_6 = "fd77::"
_END_S = 20.0


@dataclass(frozen=True)
class Bed:
    """The hosts, in order."""

    hosts: tuple[Host, ...]

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)


@contextlib.contextmanager
def hosts(
    number: int,
    *,
    rate: str = "10gbit",
    delay_us: float = 100,
    has_loopback_names: bool = False,
    is_ipv6: bool = False,
) -> Iterator[Bed]:
    """Make hosts, and remove them at the end of the block with all that runs on them.

    Args:
        number: How many.
        rate: Of each host's link, in each direction, such as "1gbit", "250mbit" or a number of bits per second.
        delay_us: One way, from host to host.
        has_loopback_names: Whether each host finds 127.0.1.1 for its own name, as after Debian's installer.
        is_ipv6: Whether hosts have addresses of IPv6 only, such as fd77::1, besides the loopback address.

    Raises:
        OSError: They can't be made, for instance because the user is not root.
    """
    names = [f"host{index}" for index in range(number)]
    addresses = [f"{NETWORK_6}{index + 1:x}" if is_ipv6 else f"{NETWORK}.{index + 1}" for index in range(number)]
    files = {name: _hosts_file(name, names, addresses, has_loopback_names) for name in names}
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(compile_switch())
        switch_init, *inits = stack.enter_context(_keeper(files))
        switch = stack.enter_context(Switch.start(program, switch_init, parse_rate(rate), delay_us, number))
        for index, (init, address) in enumerate(zip(inits, addresses, strict=True)):
            switch.connect(index, init, f"{address}/64 nodad" if is_ipv6 else f"{address}/24")
        yield Bed(
            tuple(
                Host(index, name, address, init, switch)
                for index, (name, address, init) in enumerate(zip(names, addresses, inits, strict=True))
            )
        )


def parse_rate(text: str) -> float:
    """Return the bits per second that a rate such as "1gbit" stands for.

    Raises:
        ValueError: It is not a rate.
    """
    units = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    number = text.removesuffix(unit)
    rate = float(number) * units.get(unit, 1.0) if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0
    if rate == 0:
        raise ValueError(f"{text!r} is not a rate; write 1gbit or 250mbit")
    return rate


def _hosts_file(own: str, names: list[str], addresses: list[str], has_loopback_names: bool) -> str:
    lines = ["127.0.0.1 localhost"]
    for name, address in zip(names, addresses, strict=True):
        lines.append(f"{'127.0.1.1' if has_loopback_names and name == own else address} {name}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _keeper(files: dict[str, str]) -> Iterator[list[int]]:
    """Have a keeper start the switch and the hosts, and return the process ids of their inits."""
    command = python_command("keeper", str(os.getpid()), json.dumps(files))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        line = keeper.stdout.readline()
        if not line:
            raise OSError(f"hosts can't be made: {_last_line(keeper.stderr.read())}")
        inits: list[int] = json.loads(line)
        watches = [os.pidfd_open(init) for init in inits]
        try:
            yield inits
        finally:
            keeper.kill()
            for watch in watches:
                select.select([watch], [], [], _END_S)  # an init ends after all other processes of its host
                os.close(watch)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]

"""The switch between the hosts of a bed: the process of switch.c, in a network namespace of its own."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_SOURCE = Path(__file__).with_name("switch.c")
_ANSWER_S = 10.0
# Each host by itself, so that a host may reach others through the bed only; the links need no IPv6.
_SET_UP = """
link set lo up
link set eth0 addrgenmode none
address add {address} dev eth0
link set eth0 up
"""


@contextlib.contextmanager
def compile_switch() -> Iterator[str]:
    """Compile switch.c and give the path of the program. No file of it outlives this process.

    Raises:
        OSError: There is no C compiler, or it fails.
    """
    with tempfile.TemporaryDirectory(prefix="phalanx-hosts-") as folder:
        program = Path(folder) / "switch"
        command = ["cc", "-O2", "-o", str(program), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{_SOURCE.name} can't be compiled: {done.stderr.strip()[:500]}")
        descriptor = os.open(program, os.O_RDONLY)
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


class Switch:
    """A switch that runs, and obeys one thread at a time."""

    def __init__(self, process: subprocess.Popen[str], init: int) -> None:
        self._process = process
        self._init = init

    @classmethod
    @contextlib.contextmanager
    def start(cls, program: str, init: int, bits_per_s: float, delay_us: float, num_ports: int) -> Iterator[Switch]:
        """Start the program in the network namespace of the switch's init.

        Raises:
            OSError: It can't make its devices.
        """
        ports = [_port_name(number) for number in range(num_ports)]
        with subprocess.Popen(
            ["nsenter", f"--net=/proc/{init}/ns/net", program, str(bits_per_s), str(delay_us), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C at a terminal is not for it
        ) as process:
            switch = cls(process, init)
            try:
                if switch._read_line() != "ready":
                    process.kill()
                    raise OSError(f"the switch does not start: {_rest(process.stderr)}")
                yield switch
            finally:
                process.kill()

    def connect(self, number: int, init: int, address: str) -> None:
        """Plug a port in at a host, and give the host's interface its address.

        Raises:
            OSError: It failed.
        """
        # `ip` stays in the namespace of processes in which the host's init has this number.
        _ip(self._init, f"link set {_port_name(number)} netns {init} name eth0")
        _ip(init, _SET_UP.format(address=address))

    def order(self, command: str, number: int) -> str:
        """Send a command about a port and return the answer without its "ok".

        Raises:
            OSError: The switch has ended, or it does not know the command.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command} {number}\n")
        self._process.stdin.flush()
        answer = self._read_line()
        if not answer.startswith("ok"):
            raise OSError(f"the switch does not {command} {number}: {answer or 'it has ended'}")
        return answer.removeprefix("ok").strip()

    def count(self, number: int) -> tuple[int, int]:
        """Return the bytes that have left a host and that have reached it."""
        sent, received = self.order("bytes", number).split()
        return int(sent), int(received)

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)  # one answer at a time, so no buffer
        return self._process.stdout.readline().strip() if readable else ""


def _port_name(number: int) -> str:
    return f"port{number}"


def _ip(init: int, commands: str) -> None:
    command = ["nsenter", f"--net=/proc/{init}/ns/net", "ip", "-batch", "-"]
    done = subprocess.run(command, input=commands, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {commands.strip()!r}: {done.stderr.strip()}")


def _rest(stream: IO[str] | None) -> str:
    return stream.read().strip() if stream is not None else ""

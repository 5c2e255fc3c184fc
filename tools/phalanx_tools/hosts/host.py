"""One host of a bed: run commands there, and break its link."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from phalanx_tools.hosts.switch import Switch

_TOOLS = str(Path(__file__).parents[2])
_PROGRAM = "import sys; sys.path.insert(0, {!r}); from phalanx_tools.hosts.{} import main; main(*sys.argv[1:])"


ALL_NAMESPACES = "mnt,uts,ipc,pid,net"


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs main() of a module of this package, whatever the user has set for Python."""
    return [sys.executable, "-ISc", _PROGRAM.format(_TOOLS, module), *arguments]


def enter_command(init: int, *command: str, namespaces: str = ALL_NAMESPACES) -> list[str]:
    """Return the command that runs a command in namespaces of a host's init."""
    return python_command("entering", str(init), namespaces, *command)


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        number: From 0.
        name: Its host name, which all hosts can look up.
        address: In the bed's network.
        init: The process id of its first process, as seen from outside.
    """

    number: int
    name: str
    address: str
    init: int
    switch: Switch

    def command(self, *command: str, namespaces: str = ALL_NAMESPACES) -> list[str]:
        """Return the command that runs a command on this host. It passes signals and exit codes on.

        Args:
            command: Of several words.
            namespaces: Those of the host that it gets. A launcher that starts processes on other hosts by commands such
                as this one must see their inits, so it keeps the outer "pid" and "mnt".
        """
        return enter_command(self.init, *command, namespaces=namespaces)

    def run(self, *command: str, timeout_s: float = 60, check: bool = True, **options: Any) -> str:
        """Run a command on this host, in the caller's folder and environment, and return its standard output.

        Args:
            command: Of several words.
            timeout_s: How long it may take; it is killed then.
            check: Whether an exit code other than 0 is an error.
            options: Of subprocess.run().

        Raises:
            subprocess.CalledProcessError: It failed.
            subprocess.TimeoutExpired: It took too long.
        """
        options.setdefault("stderr", None)
        done = subprocess.run(
            self.command(*command), stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=check, **options
        )
        return str(done.stdout)

    def start(self, *command: str, stdout: int | IO[Any] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a command on this host. Options are those of subprocess.Popen()."""
        return subprocess.Popen(self.command(*command), stdout=stdout, text=True, **options)

    def processes(self) -> list[int]:
        """Return all processes of this host but its init, as seen from outside."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                if os.readlink(folder / "ns/pid") == own and int(folder.name) != self.init:
                    found.append(int(folder.name))
        return found

    def cut(self) -> None:
        """Pull the cable. The host sees that its interface has no carrier."""
        self.switch.order("cut", self.number)

    def mend(self) -> None:
        """Put the cable back."""
        self.switch.order("mend", self.number)

    def lose_packets(self) -> None:
        """Lose everything to and from this host, which sees nothing of it: a switch in between is broken."""
        self.switch.order("lose", self.number)

    def pass_packets(self) -> None:
        """Let packets pass again."""
        self.switch.order("pass", self.number)

    def power_off(self) -> None:
        """End all that runs on this host at once, without a word to the others. The host does not come back."""
        self.lose_packets()  # a kernel would still close the connections of its processes
        os.kill(self.init, signal.SIGKILL)

    def bytes_sent(self) -> int:
        """Return the bytes that have left this host, with the headers of Ethernet and TCP."""
        return self.switch.count(self.number)[0]

    def bytes_received(self) -> int:
        """Return the bytes that have reached this host."""
        return self.switch.count(self.number)[1]

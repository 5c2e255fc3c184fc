"""The launcher's end of its conversation with the agent of its host."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from phalanx.launch.hosts.agent import AgentTask
from phalanx.launch.hosts.blame import AttemptVerdict
from phalanx.launch.hosts.cards import HostCard
from phalanx.launch.hosts.json_lines import JsonLines
from phalanx.launch.hosts.link import Message
from phalanx.launch.hosts.plan import HostsPlan
from phalanx.settings import copy_environment

# It must not look for modules in the working directory, as Python does with -c.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); from phalanx.launch.hosts.agent import main; "
    "main(int(sys.argv[1]))"
)
_END_S = 6.0  # longer than an agent waits for the other hosts to leave
_ALIKE = ("phalanx", "torch")  # packages whose versions must be alike on all hosts


class AgentClient:
    """A running agent. Not for several threads.

    Args:
        plan: What the user asks for.
        num_ranks: How many ranks this host starts.
        max_restarts: How often it would restart them.
        ranks: Their numbers, if another launcher has chosen them.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, plan: HostsPlan, num_ranks: int, max_restarts: int, ranks: tuple[int, ...] = ()) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=copy_environment(),
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C in the terminal does not reach it
                )
            except OSError:
                ours.close()
                raise
        self._lines = JsonLines(ours)
        card = HostCard(
            name=os.uname().nodename,
            address="",
            pid=os.getpid(),
            num_ranks=num_ranks,
            number=plan.number,
            num_hosts=plan.num_hosts,
            job_id=plan.job_id,
            max_restarts=max_restarts,
            port=0,
            versions=find_versions(),
            ranks=ranks,
        )
        task = AgentTask(plan.endpoint, plan.token, card, plan.own_address, plan.timeout_s, plan.options, plan.program)
        self._lines.send(task.to_json())

    @property
    def pid(self) -> int:
        """The process id of the agent."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that can be read when there are messages."""
        return self._lines.fileno()

    def read(self) -> list[Message]:
        """Return the messages that have come.

        Raises:
            EOFError: The agent has died.
        """
        return self._lines.read()

    def accuse(self, attempt: int, verdict: AttemptVerdict) -> None:
        """Tell all hosts what has failed here."""
        self._lines.send({"kind": "accuse", "attempt": attempt, "verdict": verdict.to_json()})

    def tell_ended(self, attempt: int) -> None:
        """Tell all hosts that the ranks of this host have ended well."""
        self._lines.send({"kind": "ended", "attempt": attempt})

    def tell_ready(self) -> None:
        """Tell all hosts that this one can start its ranks again."""
        self._lines.send({"kind": "ready"})

    def answer(self, question: Message, value: object) -> None:
        """Answer a question of another host."""
        self._lines.send({"kind": "answer", "id": question["id"], "value": value})

    def close(self) -> None:
        """Leave the job; return when the agent has ended."""
        self._lines.send({"kind": "bye"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._process.kill()
        self._process.wait()
        self._lines.close()


def find_versions() -> dict[str, str]:
    """Return the versions that must be alike on all hosts."""
    found = {}
    for name in _ALIKE:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found

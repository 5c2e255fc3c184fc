"""Ranks that a zygote forks: the launcher's requests to it, and its messages about the ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from phalanx.errors import InternalError
from phalanx.launch.outcome import could_not_start
from phalanx.launch.rank import UNKNOWN_STATUS, LocalProcess, Rank
from phalanx.launch.rank_devices import RankGpus, inherited_devices, rank_environment
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.zygote_client import ZygoteClient
from phalanx.settings import torch_threads


def make_request(
    payload: bytes, num_ranks: int, meeting: str, num_threads: int, gpus: RankGpus | None = None
) -> StartRequest:
    """Describe ranks that have the environment, folder, search path and arguments of this process.

    Args:
        payload: What they have to do.
        num_ranks: How many.
        meeting: Name of their world's meeting place.
        num_threads: The default of how many threads torch may use in each rank.
        gpus: Their virtual GPUs; None for those that this process has set up.
    """
    return StartRequest(
        num_ranks=num_ranks,
        payload=payload,
        environment=rank_environment(gpus),
        folder=os.getcwd(),
        path=list(sys.path),
        arguments=list(sys.argv),
        meeting=meeting,
        num_threads=torch_threads(num_threads),
        own_type_devices=inherited_devices(gpus),
    )


def open_standard_streams(stack: contextlib.ExitStack) -> list[int]:
    """Return copies of the standard streams, which the stack closes; of /dev/null for a stream that is closed."""
    copies = []
    for number in range(3):
        try:
            copies.append(os.dup(number))
        except OSError:  # closed in this process
            copies.append(os.open(os.devnull, os.O_RDWR))
        stack.callback(os.close, copies[-1])
    return copies


class ZygoteRanks:
    """The starter of ranks that a zygote forks. Closing it ends those that still run.

    Args:
        ranks: The records of the ranks, which are kept up to date.
        has_groups: Whether signals also go to the processes that the ranks have started.

    Attributes:
        is_over: Whether all ranks and all processes that they have started have ended.
        is_lost: Whether the zygote has ended with its ranks, or can't report on them any more.
    """

    def __init__(self, ranks: Sequence[Rank], *, has_groups: bool = False) -> None:
        self._ranks = ranks
        self._zygote: ZygoteClient | None = None
        self._has_groups = has_groups
        self._news, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_over = False
        self.is_lost = False

    def start(self, request: StartRequest, descriptors: Sequence[int], zygote: ZygoteClient) -> None:
        """Ask a zygote for the ranks, with these descriptors: those that they share, then those of each rank.

        Raises:
            InternalError: The zygote could not be started, or can't be forked (NotForkableError).
            OSError: The request could not be sent.
        """
        self._zygote = zygote
        with self._theirs:
            zygote.start(request, [self._theirs.fileno(), *descriptors])

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is news of ranks."""
        return self._news.fileno()

    def read(self) -> list[Rank]:
        """Read one message; return the ranks that have ended.

        Raises:
            RankFailedError: A process could not be started.
        """
        message = self._news.recv(1 << 20)
        if not message:
            return [] if self.is_lost else self._lose()
        what, *facts = pickle.loads(message)
        if what == "started":
            self._begin(facts[0])
        elif what == "refused":
            raise could_not_start(facts[0], len(self._ranks), *facts[1:])
        elif what == "all ended":
            self.is_over = True
        else:
            rank = self._ranks[facts[0]]
            rank.status = facts[1]
            return [rank]
        return []

    def await_start(self) -> None:
        """Wait until the ranks have processes.

        Raises:
            InternalError: The zygote ended first.
            RankFailedError: A process could not be started.
        """
        while not all(rank.pid for rank in self._ranks):
            self.read()
            if self.is_lost:
                raise InternalError("the process that ranks are forked from ended before it had forked them")

    def close(self) -> None:
        """End the ranks that still run."""
        self._theirs.close()
        self._news.close()
        for rank in self._ranks:
            rank.release()

    def _begin(self, pids: dict[int, int]) -> None:
        for rank in self._ranks:
            rank.pid = pids[rank.index]
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                rank.process = LocalProcess(rank.pid, has_group=self._has_groups)

    def _lose(self) -> list[Rank]:
        assert self._zygote is not None
        self.is_over = self.is_lost = True
        status = 256 + signal.SIGKILL if (self._zygote.exit_code() or 0) < 0 else UNKNOWN_STATUS
        ended = [rank for rank in self._ranks if rank.status is None]
        for rank in ended:
            rank.status = status
        return ended

    def __enter__(self) -> ZygoteRanks:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

"""A barrier that names the ranks which do not come. It uses messages, so its failure leaves the group as it was."""

from __future__ import annotations

import time
from datetime import timedelta

import torch

from phalanx.errors import OperationTimeoutError, PeerError, PhalanxError
from phalanx.groups.shared_memory import SharedMemoryGroup

_TAGS = 1 << 40  # above any tag that torch lets a user give
_PASSED, _FAILED = 1, 0


class MonitoredBarrier:
    """A group's monitored barriers. One at a time."""

    def __init__(self, group: SharedMemoryGroup) -> None:
        self._group = group
        self._number = 0

    def run(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Pass it, or raise.

        Raises:
            OperationTimeoutError: Rank 0: somebody did not come. Elsewhere: rank 0 did not let this rank pass.
            PeerError: The same, because a rank died.
        """
        self._number += 1  # what comes late for a barrier that failed is no answer to the next one
        limit_s = self._group.timeout_s if timeout is None else timeout.total_seconds()
        if self._group.rank == 0:
            self._collect(limit_s, wait_all_ranks)
        else:
            self._report(limit_s)

    def _collect(self, limit_s: float, wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + limit_s
        if limit_s <= 0:
            self._answer(_FAILED)
            raise self._error(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit_s * 1000:.0f} ms.")
        missing: list[int] = []
        reason: PhalanxError | None = None
        for rank in range(1, self._group.size):
            try:
                self._receive(rank, max(deadline - time.monotonic(), 0.001))
            except (OperationTimeoutError, PeerError) as error:
                missing.append(rank)
                reason = reason or error
                if not wait_all_ranks:
                    break
        self._answer(_FAILED if missing else _PASSED)
        if missing:
            named = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missing))}"
            raise self._error(
                f"[Rank 0]: {named} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms", tuple(missing)
            ) from reason

    def _report(self, limit_s: float) -> None:
        # Rank 0 answers when its own time is over: wait a little longer, to hear whom it missed.
        told = f"[Rank {self._group.rank}]: Rank {self._group.rank} successfully reached monitoredBarrier, but"
        try:
            self._group.send(torch.tensor([1], dtype=torch.uint8), 0, _TAGS + self._number, timeout_s=max(limit_s, 0.001))
            answer = self._receive(0, max(limit_s, 0.001) + 0.1)
        except (OperationTimeoutError, PeerError) as error:
            raise self._error(
                f"{told} received errors while waiting for send/recv from rank 0. "
                f"Please check rank 0 logs for faulty rank.\n  because  {str(error).splitlines()[0]}", (0,)
            ) from error  # fmt: skip
        if answer != _PASSED:
            raise self._error(
                f"{told} received errors while waiting for send/recv from rank 0. "
                f"Please check rank 0 logs for faulty rank."
            )

    def _receive(self, source: int, timeout_s: float) -> int:
        token = torch.empty(1, dtype=torch.uint8)
        self._group.recv(token, source, _TAGS + self._number, timeout_s=timeout_s)
        return int(token)

    def _answer(self, verdict: int) -> None:
        token = torch.tensor([verdict], dtype=torch.uint8)
        for rank in range(1, self._group.size):
            self._group.send(token, rank, _TAGS + self._number, async_op=True)

    def _error(self, text: str, culprits: tuple[int, ...] = ()) -> OperationTimeoutError:
        group = self._group
        return OperationTimeoutError(
            text, group=group.name, rank=group.rank, num_ranks=group.size, operation="monitored_barrier", culprits=culprits
        )

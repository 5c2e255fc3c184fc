"""A barrier that names the ranks which do not come. It uses messages, so the group stays usable if it fails.

rank r            rank 0
HELLO id  ---->             every attempt of a rank has a number of its own
          <----   ASK id
YES id    ---->             only a rank that still waits in this attempt answers: an old HELLO does not count
          <----   PASS id or FAIL id
"""

from __future__ import annotations

import time
from datetime import timedelta
from enum import IntEnum

import torch

from phalanx.collectives import Group
from phalanx.errors import OperationTimeoutError, PeerError, PhalanxError

_TAG = 1 << 40  # above any tag that torch lets a user give
_LEAST_S = 0.001
_LONGEST_MOMENT_S = 0.05
_ANSWER_S = 0.1  # rank 0 answers at its own deadline, so the other ranks wait a little longer


class _Word(IntEnum):
    HELLO = 0
    ASK = 1
    YES = 2
    PASS = 3
    FAIL = 4


class MonitoredBarrier:
    """The monitored barriers of a group, one at a time."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._attempt = 0

    def run(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Wait until all ranks are here.

        Raises:
            OperationTimeoutError: On rank 0: a rank did not come. On other ranks: rank 0 did not let this rank pass.
        """
        limit_s = self._group.timeout_s if timeout is None else timeout.total_seconds()
        if self._group.rank == 0:
            self._collect(limit_s, wait_all_ranks)
        else:
            self._report(limit_s)

    def _collect(self, limit_s: float, wait_all_ranks: bool) -> None:
        if limit_s <= 0:
            raise self._error(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {limit_s * 1000:.0f} ms.")
        present, missing, reason = self._await_all(time.monotonic() + limit_s, wait_all_ranks)
        for rank, attempt in present.items():
            self._send(rank, _Word.FAIL if missing else _Word.PASS, attempt)
        if missing:
            named = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missing))}"
            text = f"[Rank 0]: {named} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms"
            raise self._error(text, tuple(missing)) from reason

    def _await_all(
        self, deadline: float, wait_all_ranks: bool
    ) -> tuple[dict[int, int], list[int], PhalanxError | None]:
        """Return the attempt of each rank that waits, the ranks that are missing, and the error of the first of them.

        It listens to each rank for a moment, in turn. If it waited for one rank to the end, the ranks behind it would
        have no time to answer, and would seem to be missing too.
        """
        present: dict[int, int] = {}
        gone: dict[int, PhalanxError] = {}
        asked = dict.fromkeys(range(1, self._group.size), 0)
        moment_s, is_last_look = _LEAST_S, False
        while asked and not is_last_look and not (gone and not wait_all_ranks):
            # When the time is up, each rank gets a last look, in order: so the lowest one that is missing is named.
            is_last_look = time.monotonic() >= deadline
            for rank in list(asked):
                try:
                    moment = time.monotonic() + moment_s
                    present[rank] = self._await_presence(
                        rank, asked, deadline if is_last_look else min(deadline, moment)
                    )
                except OperationTimeoutError as error:
                    if not is_last_look:
                        continue
                    gone[rank] = error
                except PeerError as error:
                    gone[rank] = error
                del asked[rank]
                if gone and not wait_all_ranks:
                    break
            moment_s = min(2 * moment_s, _LONGEST_MOMENT_S)
        missing = sorted(gone)
        return present, missing, gone[missing[0]] if missing else None

    def _await_presence(self, rank: int, asked: dict[int, int], deadline: float) -> int:
        """Return the number of the attempt that a rank waits in.

        Args:
            rank: That rank.
            asked: Which attempt each rank was asked about last.
            deadline: How long to wait.
        """
        while True:
            word, attempt = self._receive(rank, deadline)
            if word == _Word.HELLO:
                asked[rank] = attempt
                self._send(rank, _Word.ASK, attempt)
            elif word == _Word.YES and attempt == asked[rank]:
                return attempt

    def _report(self, limit_s: float) -> None:
        self._attempt += 1
        deadline = time.monotonic() + max(limit_s, _LEAST_S) + _ANSWER_S
        text = (
            f"[Rank {self._group.rank}]: Rank {self._group.rank} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        )
        try:
            self._send(0, _Word.HELLO, self._attempt)
            while True:
                word, attempt = self._receive(0, deadline)
                if attempt != self._attempt:
                    continue
                if word != _Word.ASK:
                    break
                self._send(0, _Word.YES, attempt)
        except (OperationTimeoutError, PeerError) as error:
            raise self._error(f"{text}\n  because  {str(error).splitlines()[0]}", (0,)) from error
        if word == _Word.FAIL:
            raise self._error(text)

    def _receive(self, source: int, deadline: float) -> tuple[int, int]:
        message = torch.empty(2, dtype=torch.int64, device="cpu")
        self._group.recv(message, source, _TAG, timeout_s=max(deadline - time.monotonic(), _LEAST_S))
        word, attempt = message.tolist()
        return word, attempt

    def _send(self, rank: int, word: _Word, attempt: int) -> None:
        self._group.send(torch.tensor([word, attempt], device="cpu"), rank, _TAG, async_op=True)

    def _error(self, text: str, culprits: tuple[int, ...] = ()) -> OperationTimeoutError:
        return OperationTimeoutError(
            text,
            group=self._group.name,
            rank=self._group.rank,
            num_ranks=self._group.size,
            operation="monitored_barrier",
            culprits=culprits,
        )

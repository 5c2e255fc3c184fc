"""The record of a running job, in a memory file named "phalanx-job" that `phalanx diagnose` finds through /proc."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from phalanx.diagnosis.views import JobView

NAME = "phalanx-job"
_BYTES_PER_PID = 12


class JobRecord:
    """The record, which exists while it is open; only the launcher has it."""

    def __init__(self, name: str, command: Sequence[str], num_ranks: int) -> None:
        self._view = JobView(name, os.getpid(), num_ranks, time.time(), command=list(command))
        self._descriptor = os.memfd_create(NAME)
        self._num_bytes = len(self._text()) + num_ranks * _BYTES_PER_PID
        self.write([])

    @property
    def view(self) -> JobView:
        """The content of the record."""
        return self._view

    def name_host(self, first_rank: int, host: str) -> None:
        """Add which of several hosts this is, and the number of its first rank."""
        self._view = replace(self._view, first_rank=first_rank, host=host)
        self._num_bytes += len(host) + len(str(first_rank))
        self.write(self._view.pids)

    def write(self, pids: Sequence[int]) -> None:
        """Write the processes of the ranks, in rank order."""
        self._view = replace(self._view, pids=list(pids))
        # In one call, and always the same size, so that readers see either the old or the new record.
        os.pwrite(self._descriptor, self._text().ljust(self._num_bytes), 0)

    def _text(self) -> bytes:
        return json.dumps(asdict(self._view)).encode()

    def close(self) -> None:
        """Remove the record."""
        os.close(self._descriptor)

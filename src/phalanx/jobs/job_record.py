"""The record of a running job, in a memory file named "phalanx-job" that `phalanx diagnose` finds through /proc."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from phalanx.diagnosis.views import JobView

NAME = "phalanx-job"


class JobRecord:
    """The record, which exists while it is open; only the launcher has it."""

    def __init__(self, name: str, command: Sequence[str], num_ranks: int) -> None:
        self._view = JobView(name, os.getpid(), num_ranks, time.time(), command=list(command))
        self._descriptor = os.memfd_create(NAME)
        self.write([])

    @property
    def view(self) -> JobView:
        """The content of the record."""
        return self._view

    def write(self, pids: Sequence[int]) -> None:
        """Write the processes of the ranks, in rank order."""
        self._view = replace(self._view, pids=list(pids))
        text = json.dumps(asdict(self._view)).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def close(self) -> None:
        """Remove the record."""
        os.close(self._descriptor)

"""A note about a running job that other programs of this user find through /proc: memory named "phalanx-job"."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

NAME = "phalanx-job"


class JobRecord:
    """Holds the note for as long as it is open; only the launcher has it."""

    def __init__(self, name: str, command: Sequence[str], num_ranks: int) -> None:
        self._facts: dict[str, Any] = {
            "name": name,
            "pid": os.getpid(),
            "command": list(command),
            "num_ranks": num_ranks,
            "started_unix": time.time(),
        }
        self._descriptor = os.memfd_create(NAME)
        self.write([])

    @property
    def facts(self) -> dict[str, Any]:
        """What it says."""
        return dict(self._facts)

    def write(self, pids: Sequence[int]) -> None:
        """Note the ranks' processes, in rank order."""
        self._facts["pids"] = list(pids)
        text = json.dumps(self._facts).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def close(self) -> None:
        """Take the note away."""
        os.close(self._descriptor)

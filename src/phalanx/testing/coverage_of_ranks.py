"""Coverage measured on ranks, brought home: with coverage.py running, a rank's lines count like pytest's own."""

from __future__ import annotations

import sys
from typing import Any


def _running() -> Any:
    coverage: Any = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()


def collect() -> bytes:
    """On a rank: return what was measured here; nothing when nothing measures."""
    measuring = _running()
    if measuring is None:
        return b""
    data = measuring.get_data()
    collected: bytes = data.dumps()
    data.erase()  # after a fork it has a file of its own
    return collected


def add(collected: bytes) -> None:
    """In pytest's process: add a rank's measurements to those made here."""
    measuring = _running()
    if measuring is None or not collected:
        return
    from coverage import CoverageData

    other = CoverageData(no_disk=True)
    other.loads(collected)
    measuring.get_data().update(other)

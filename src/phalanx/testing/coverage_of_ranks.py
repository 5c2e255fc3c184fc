"""Add coverage of ranks to pytest's own: if coverage.py runs, lines that a rank executes count too."""

from __future__ import annotations

import sys
from typing import Any


def _running() -> Any:
    coverage: Any = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()


def collect() -> bytes:
    """On a rank: return what was measured here; empty if coverage.py does not run."""
    measuring = _running()
    if measuring is None:
        return b""
    data = measuring.get_data()
    collected: bytes = data.dumps()
    data.erase()  # after a fork, it has its own file
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

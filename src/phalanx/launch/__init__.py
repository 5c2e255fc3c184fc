"""Start ranks, and let them find each other."""

from __future__ import annotations

from phalanx.launch.spawn import spawn

__all__ = ["spawn"]

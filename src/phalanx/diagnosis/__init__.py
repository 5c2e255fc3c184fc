"""Errors that say what happened, on which rank, because of which rank, and what to do; made from the engine's facts."""

from __future__ import annotations

from phalanx.diagnosis.explain import explain
from phalanx.diagnosis.scene import Scene

__all__ = ["Scene", "explain"]

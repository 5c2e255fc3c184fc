"""Turn the engine's facts into errors that say what happened, on which rank, because of whom, and what to do."""

from __future__ import annotations

from phalanx.diagnosis.explain import explain
from phalanx.diagnosis.scene import Scene

__all__ = ["Scene", "explain"]

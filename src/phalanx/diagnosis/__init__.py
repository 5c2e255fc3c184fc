"""Turn the engine's facts into errors that say what happened, on which rank, because of whom, and what to do."""

from __future__ import annotations

from phalanx.diagnosis.explain import Scene, explain

__all__ = ["Scene", "explain"]

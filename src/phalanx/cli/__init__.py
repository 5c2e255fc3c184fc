"""The command line."""

from __future__ import annotations

from phalanx.cli.main import main

__all__ = ["main"]

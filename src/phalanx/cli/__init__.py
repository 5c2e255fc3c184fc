"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Serve `phalanx`."""
    if sys.argv[1:2] == ["run"]:
        from phalanx.jobs.early_zygote import start_early

        start_early(sys.argv[2:])
    from phalanx.cli.main import main as commands

    commands(prog_name="phalanx")


__all__ = ["main"]

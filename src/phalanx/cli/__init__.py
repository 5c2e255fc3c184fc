"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve `phalanx`, with the arguments of this process if none are given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"]:
        from phalanx.jobs.early_zygote import start_early

        start_early(given[1:])
    try:
        from phalanx.cli.main import main as commands
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)  # before there is anybody to end a job in order

    commands(args=given, prog_name="phalanx")


__all__ = ["main"]

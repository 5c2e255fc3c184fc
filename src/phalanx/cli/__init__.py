"""The command line.

A subcommand imports what it needs inside its function: `phalanx --help` should not wait for torch, which takes a
second, and `phalanx run` starts the process that imports torch before it imports anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `phalanx` command. Without arguments, use those of this process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"]:
        from phalanx.jobs.early_zygote import start_early

        start_early(given[1:])
    try:
        from phalanx.cli.main import main as commands
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)  # there is no job to end yet

    commands(args=given, prog_name="phalanx")


__all__ = ["main"]

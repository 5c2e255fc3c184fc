"""`phalanx doctor`: check whether ranks can run on this machine."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phalanx.doctor.finding import Status

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red", "absent": "cyan"}
_WIDEST = 110  # longer lines are hard to read


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--self-test/--no-self-test",
    "with_self_tests",
    default=True,
    help="Run ranks of every kind as a test, or only examine the machine.",
)
@click.option("--patches", "with_patches", is_flag=True, help="List all names that phalanx changes in torch.")
def doctor(as_json: bool, with_self_tests: bool, with_patches: bool) -> None:
    """Check whether ranks can run on this machine, and say how to fix what is missing.

    The exit code is 1 if ranks can't run properly. A machine without a GPU or without MPI is fine.
    """
    import importlib.metadata

    from phalanx.doctor import examine_machine
    from phalanx.doctor.report import is_ready, with_counts_only, write_json, write_page

    started = time.monotonic()
    findings = examine_machine(with_self_tests=with_self_tests, watch=_show_progress)
    _show_progress("")
    if as_json:
        click.echo(write_json(findings, importlib.metadata.version("phalanx"), time.monotonic() - started))
    else:
        width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
        shown = findings if with_patches else with_counts_only(findings, "phalanx doctor --patches")
        click.echo(write_page(shown, width, _paint))
    raise SystemExit(0 if is_ready(findings) else 1)


def _show_progress(text: str) -> None:
    """Write over the one line of progress."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _paint(mark: str, status: Status) -> str:
    from phalanx.settings import copy_environment

    if not sys.stdout.isatty() or copy_environment().get("NO_COLOR"):
        return mark
    return click.style(mark, fg=_COLOURS[status])

"""`phalanx upstream`: torch's own distributed tests, run against phalanx."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phalanx.conformance.forked_test import Outcome
    from phalanx.conformance.upstream import Report


@click.command()
@click.option("--mode", type=click.Choice(["plain", "gloo"]), default="plain", show_default=True,
              help="Under phalanx's own name, or standing in for Gloo.")  # fmt: skip
@click.option("--world", "world_size", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks a test.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              help="Seconds that one test may take.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all outcomes here.")
@click.option("--verbose", "-v", is_flag=True, help="Print every test that ran.")
@click.argument("names", nargs=-1)
def upstream(
    mode: str, world_size: int, timeout_s: float, json_file: Path | None, verbose: bool, names: tuple[str, ...]
) -> None:
    """Run the distributed tests that ship inside the torch wheel, all or those NAMED.

    Exits with 1 if any of them failed.
    """
    from phalanx.conformance.upstream import run_upstream
    from phalanx.errors import UsageError

    is_watched = sys.stderr.isatty()

    def watch(outcome: Outcome, num_done: int, num_all: int) -> None:
        if is_watched:  # one line that is written over
            told = f"\r\x1b[K[{num_done}/{num_all}] {outcome.name}" if num_done < num_all else "\r\x1b[K"
            click.echo(told, nl=False, err=True)
        is_bad = outcome.status == "failed"
        if is_bad or (verbose and outcome.status == "passed"):
            click.echo(f"[{num_done}/{num_all}] {outcome.name}: {outcome.status} in {outcome.seconds:.1f} s")
        if is_bad:
            click.echo("    " + outcome.reason.replace("\n", "\n    "))

    try:
        report = run_upstream(mode, world_size, names=names, timeout_s=timeout_s, watch=watch)
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    _tell(report)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(outcome) for outcome in report.outcomes], indent=1) + "\n")
    raise SystemExit(1 if report.with_status("failed") else 0)


def _tell(report: Report) -> None:
    for reason, count in report.skip_reasons():
        click.echo(f"  skipped {count:3d}: {reason}")
    slowest = sorted(report.outcomes, key=lambda outcome: -outcome.seconds)[:3]
    click.echo("  slowest: " + ", ".join(f"{outcome.name} {outcome.seconds:.1f} s" for outcome in slowest))
    for outcome in report.with_status("failed"):
        click.echo(f"  FAILED {outcome.name}")
    click.echo(report.summary())

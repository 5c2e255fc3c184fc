"""`phalanx doctor`: check whether ranks can run on this machine."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from phalanx.doctor.finding import Finding, Status

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
@click.option(
    "--hosts",
    "with_hosts",
    is_flag=True,
    help="Check whether several hosts can run a job together. Type this on each of them, with the same options "
    "as for phalanx run.",
)
@click.option("--rdzv-endpoint", "endpoint", metavar="HOST[:PORT]", help="With --hosts: where the hosts meet.")
@click.option(
    "--nnodes",
    "num_hosts",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="With --hosts: how many hosts there are.",
)
@click.option(
    "--local-addr",
    "own_address",
    default="",
    metavar="ADDRESS",
    help="With --hosts: the address at which others reach this host.",
)
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False), help="With --hosts: the file with the job's token."
)
@click.option(
    "--rdzv-timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="With --hosts: how long to wait for the other hosts.",
)
def doctor(as_json: bool, with_self_tests: bool, with_patches: bool, with_hosts: bool, **host_options: Any) -> None:
    """Check whether ranks can run on this machine, and say how to fix what is missing.

    The exit code is 1 if ranks can't run properly. A machine without a GPU or without MPI is fine.
    """
    import importlib.metadata

    from phalanx.doctor.report import is_ready, with_counts_only, write_json, write_page

    started = time.monotonic()
    if with_hosts:
        findings = _examine_hosts(**host_options)
    else:
        from phalanx.doctor import examine_machine

        findings = examine_machine(with_self_tests=with_self_tests, watch=_show_progress)
        _show_progress("")
    if as_json:
        click.echo(write_json(findings, importlib.metadata.version("phalanx"), time.monotonic() - started))
    else:
        width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
        shown = findings if with_patches else with_counts_only(findings, "phalanx doctor --patches")
        click.echo(write_page(shown, width, _paint))
    raise SystemExit(0 if is_ready(findings) else 1)


def _examine_hosts(
    endpoint: str | None, num_hosts: int, own_address: str, token_file: str | None, timeout_s: float
) -> list[Finding]:
    from phalanx.doctor.hosts import examine_hosts
    from phalanx.errors import UsageError
    from phalanx.launch.hosts.addresses import parse_endpoint
    from phalanx.launch.hosts.token import read_token

    if endpoint is None:
        raise click.UsageError("--hosts needs the place where the hosts meet: --rdzv-endpoint HOST:PORT")
    try:
        place, token = parse_endpoint(endpoint), read_token(token_file)
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    return examine_hosts(
        place,
        num_hosts,
        token=token,
        own_address=own_address,
        timeout_s=timeout_s,
        say=lambda text: click.echo(text, err=True),
    )


def _show_progress(text: str) -> None:
    """Write over the one line of progress."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _paint(mark: str, status: Status) -> str:
    from phalanx.settings import copy_environment

    if not sys.stdout.isatty() or copy_environment().get("NO_COLOR"):
        return mark
    return click.style(mark, fg=_COLOURS[status])

"""`./dev bench hosts`: phalanx over several hosts, beside flat Gloo, OpenMPI and MPICH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from phalanx_tools.commands.lists import names_of, positive_numbers

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "send_recv_far")
_TRAINING = ("ddp_step", "fsdp_step")
_CONTENDERS = ("phalanx", "phalanx_torch", "gloo", "openmpi", "openmpi_no_han", "mpich")


@click.command(name="hosts")
@click.option(
    "--operations",
    callback=names_of(*_OPERATIONS, *_TRAINING),
    default=",".join(_OPERATIONS),
    show_default=True,
    help="What to measure; also ddp_step and fsdp_step.",
)
@click.option(
    "--sizes",
    callback=positive_numbers,
    default="4,4096,65536,1048576,16777216,67108864",
    show_default=True,
    help="The sizes of the largest tensor of a rank, in bytes.",
)
@click.option(
    "--contenders",
    callback=names_of(*_CONTENDERS),
    default=",".join(_CONTENDERS),
    show_default=True,
    help="The contenders to compare.",
)
@click.option("--hosts", "num_hosts", type=click.IntRange(2, 16), default=2, show_default=True, help="How many hosts.")
@click.option(
    "--ranks", "ranks_per_host", type=click.IntRange(1), default=4, show_default=True, help="Ranks on each host."
)
@click.option("--rate", default="1gbit", show_default=True, help="The rate of each host's link.")
@click.option("--delay-us", type=click.FloatRange(0), default=100, show_default=True, help="The delay, one way.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of each contender.")
@click.option(
    "--turn",
    "turn_s",
    type=click.FloatRange(0.001),
    default=0.2,
    show_default=True,
    metavar="SECONDS",
    help="How long a turn takes; at least one operation.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file."
)
@click.option(
    "--text", "text_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables to this file."
)
def hosts(
    operations: tuple[str, ...],
    sizes: tuple[int, ...],
    contenders: tuple[str, ...],
    rounds: int,
    turn_s: float,
    json_file: Path | None,
    text_file: Path | None,
    **network_options: Any,
) -> None:  # fmt: skip
    """Measure collectives over hosts that this machine makes (root), and count the bytes on their links."""
    from rich.console import Console

    from phalanx_tools.bench.hosts.measure import Network, list_cases, measure
    from phalanx_tools.bench.hosts.report import print_bytes, print_table, to_record
    from phalanx_tools.bench.report import describe_machine
    from phalanx_tools.hosts.requirements import why_no_hosts

    if why_no_hosts():
        raise click.ClickException(why_no_hosts())
    network = Network(**network_options)
    cases = list_cases(operations, sizes, network.num_hosts * network.ranks_per_host)
    versions: dict[str, str] = {}
    rows = measure(
        network, cases, contenders, rounds, turn_s, versions=versions,
        on_case=lambda case: click.echo(f"{case.operation} {case.bytes} B", err=True),
        on_absent=lambda name, reason: click.echo(f"{name} does not take part: {reason}", err=True),
    )  # fmt: skip
    console = Console(width=150, record=True)
    print_table(console, network, rows)
    print_bytes(console, rows)
    if text_file is not None:
        text_file.write_text(console.export_text())
    if json_file is not None:
        record = to_record(network, rows, describe_machine(), versions)
        json_file.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [row for row in rows if not row.is_correct]
    if wrong:
        raise click.ClickException(f"{len(wrong)} rows have wrong results")

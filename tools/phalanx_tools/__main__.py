"""`./dev`: each command imports what it needs when it runs."""

from __future__ import annotations

import click

from phalanx.cli.command_group import CommandGroup
from phalanx_tools.commands.bench import bench
from phalanx_tools.commands.faults import faults
from phalanx_tools.commands.hosts import hosts
from phalanx_tools.commands.operations import operations
from phalanx_tools.commands.patches import patches
from phalanx_tools.commands.upstream import upstream


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run the benchmarks of phalanx, and the tests that take too long for every change."""


for command in (bench, faults, hosts, upstream, operations, patches):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="./dev")

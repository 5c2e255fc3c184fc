"""`./dev hosts`: several hosts on this machine, to try things out by hand."""

from __future__ import annotations

import os
from typing import Any

import click

from phalanx.cli.command_group import CommandGroup


@click.group(cls=CommandGroup)
def hosts() -> None:
    """Make several hosts on this machine, with a network between them, and run commands there. Needs root.

    \b
    ./dev hosts up 2 --rate 1gbit          two hosts: host0 and host1
    ./dev hosts on 0 phalanx run ...       run a command on host0; without a command, a shell
    ./dev hosts cut 1                      pull the cable of host1
    ./dev hosts down                       end all that runs there, and remove the hosts
    """


@hosts.command()
@click.argument("number", type=click.IntRange(1, 16), default=2)
@click.option("--rate", default="10gbit", show_default=True, help="The rate of each link, such as 1gbit or 250mbit.")
@click.option("--delay-us", type=click.FloatRange(0), default=100, show_default=True,
              help="The delay from one host to another, one way.")  # fmt: skip
@click.option("--loopback-names", is_flag=True, help="Let each host find 127.0.1.1 for its own name, as on Debian.")
def up(number: int, rate: str, delay_us: float, loopback_names: bool) -> None:
    """Make the hosts. They stay until `./dev hosts down`."""
    from phalanx_tools.hosts.bed import parse_rate
    from phalanx_tools.hosts.requirements import why_no_hosts
    from phalanx_tools.hosts.standing import raise_bed

    try:
        parse_rate(rate)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from None
    if why_no_hosts():
        raise click.ClickException(why_no_hosts())
    try:
        bed = raise_bed(number, rate, delay_us, has_loopback_names=loopback_names)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    _show(bed)


@hosts.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("host", type=int)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def on(host: int, command: tuple[str, ...]) -> None:
    """Run a command on a host, or a shell."""
    from phalanx_tools.hosts.host import enter_command

    bed = _ask("describe")["hosts"]
    if not 0 <= host < len(bed):
        raise click.BadParameter(f"there is no host {host}: there are 0 to {len(bed) - 1}")
    words = command or (os.environ.get("SHELL", "sh"),)
    program = enter_command(bed[host]["init"], *words)
    os.execv(program[0], program)


@hosts.command()
@click.argument("host", type=int)
def cut(host: int) -> None:
    """Pull the cable of a host, which sees it."""
    _ask("cut", host)


@hosts.command()
@click.argument("host", type=int)
def mend(host: int) -> None:
    """Put the cable of a host back."""
    _ask("mend", host)


@hosts.command()
@click.argument("host", type=int)
def lose(host: int) -> None:
    """Lose all packets to and from a host, which does not see it."""
    _ask("lose", host)


@hosts.command(name="pass")
@click.argument("host", type=int)
def let_pass(host: int) -> None:
    """Let the packets of a host pass again."""
    _ask("pass", host)


@hosts.command(name="list")
def list_hosts() -> None:
    """Show the hosts, and the bytes that they have sent and received."""
    _show(_ask("describe"))


@hosts.command()
def down() -> None:
    """End all that runs on the hosts, and remove them."""
    from phalanx_tools.hosts.standing import NoStandingBed, lower_bed

    try:
        lower_bed()
    except (NoStandingBed, OSError) as error:
        raise click.ClickException(str(error)) from None


def _ask(order: str, host: int = 0) -> dict[str, Any]:
    from phalanx_tools.hosts.standing import NoStandingBed, ask

    try:
        return ask(order, host)
    except (NoStandingBed, OSError) as error:
        raise click.ClickException(str(error)) from None


def _show(bed: dict[str, Any]) -> None:
    for number, host in enumerate(bed["hosts"]):
        click.echo(
            f"{number}  {host['name']}  {host['address']}  sent {host['sent']} bytes, received {host['received']} bytes"
        )

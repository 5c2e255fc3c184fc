"""`phalanx devices`: build the native part of virtual devices ahead of time, and say what is there."""

from __future__ import annotations

import click

from phalanx.cli.command_group import CommandGroup


@click.group(cls=CommandGroup)
def devices() -> None:
    """Build virtual GPUs for machines that have none, or say what is built."""


@devices.command()
def build() -> None:
    """Build virtual devices for the torch that is installed, and say where they are.

    The first program that uses them does so too; this is for images and other places that are prepared. What is
    built already is not built again. XDG_CACHE_HOME says where it is kept, CXX with which compiler it is built.
    """
    from phalanx.devices.building import built_library
    from phalanx.errors import BuildError

    try:
        click.echo(built_library())
    except BuildError as error:
        raise click.ClickException(str(error)) from error


@devices.command()
def show() -> None:
    """Say what is built, and with what it would be."""
    import torch

    from phalanx.devices.building import look_around
    from phalanx.devices.building.compiler import find_compiler
    from phalanx.errors import BuildError

    try:
        state = look_around()
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    try:
        compiler = find_compiler()
        named = f"{' '.join(compiler.command)} ({compiler.version or 'which does not tell its version'})"
    except BuildError as error:
        named = f"none: {str(error).splitlines()[0]}"
    built = "not yet; the first use builds it, or: phalanx devices build" if state.library is None else state.library
    for name, value in (("torch", torch.__version__), ("built", built), ("compiler", named)):
        click.echo(f"{name:<10}{value}")
    for other in state.others:
        click.echo(f"{'other':<10}{other}")

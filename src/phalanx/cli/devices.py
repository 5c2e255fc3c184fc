"""`phalanx devices`: build the native part of virtual devices ahead of time, and say what is there."""

from __future__ import annotations

import click

from phalanx.cli.command_group import CommandGroup


@click.group(cls=CommandGroup)
def devices() -> None:
    """Build the library that virtual GPUs need, or show what is built."""


@devices.command()
def build() -> None:
    """Build the library of virtual GPUs for the installed torch, and print its path.

    You need not run this: the first program that uses virtual GPUs builds the library too. Use it to build the library
    ahead of time, for example in a container image. It does nothing if the library exists. XDG_CACHE_HOME sets the
    folder of the library, and CXX sets the compiler.
    """
    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building import built_library

    try:
        click.echo(built_library())
    except BuildError as error:
        raise click.ClickException(str(error)) from error


@devices.command()
def show() -> None:
    """Show which libraries are built, and which torch and compiler a build would use."""
    import torch

    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building import find_builds
    from phalanx.virtual_gpus.building.compiling import find_compiler

    try:
        library, others = find_builds()
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    try:
        compiler = find_compiler()
        named = f"{' '.join(compiler.command)} ({compiler.version or 'unknown version'})"
    except BuildError as error:
        named = f"none: {str(error).splitlines()[0]}"
    built = "not yet; the first use builds it, or: phalanx devices build" if library is None else library
    for name, value in (("torch", torch.__version__), ("built", built), ("compiler", named)):
        click.echo(f"{name:<10}{value}")
    for other in others:
        click.echo(f"{'other':<10}{other}")

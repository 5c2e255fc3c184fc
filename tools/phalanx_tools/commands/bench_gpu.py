"""`./dev bench gpu`: compare ranks that share a GPU with Gloo and with a plain copy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from phalanx_tools.commands.lists import positive_numbers

_NO_GPU = 2


def _operations(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    from phalanx_tools.bench.gpu.goals import OPERATIONS

    names = tuple(text.split(",")) if text else OPERATIONS
    for name in names:
        if name not in OPERATIONS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


@click.command()
@click.option("--operations", callback=_operations, default="", help="The collectives to measure [default: all].")
@click.option("--ranks", callback=positive_numbers, default="2,4,8", show_default=True, help="The numbers of ranks.")
@click.option(
    "--sizes",
    callback=positive_numbers,
    default="4,4096,65536,1048576,16777216,67108864,268435456",
    show_default=True,
    help="The sizes of the largest tensor of a rank, in bytes.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each contender takes its turn.",
)
@click.option(
    "--time-limit-s", default=230.0, show_default=True, help="After this many seconds, no new measurement starts."
)
@click.option(
    "--training/--no-training", "with_training", default=True, show_default=True, help="Also measure training steps."
)
@click.option(
    "--sequences",
    default=64,
    show_default=True,
    help="The number of sequences in a training step, on all ranks together.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file."
)
def gpu(json_file: Path | None, **options: Any) -> None:
    """Measure ranks that share a GPU: collectives, training steps, and what sharing costs.

    The exit code is 1 if a result is wrong, a part failed or nothing was measured, and 2 if there is no GPU. The
    command also prints which goals were missed; a goal that was not measured counts as missed.
    """
    from phalanx.errors import UsageError
    from phalanx_tools.bench.gpu.measure import GpuOptions, describe_gpu, has_failed, measure_gpu, missed_goals

    try:
        machine = {**_machine(), **describe_gpu()}
    except UsageError as error:
        click.echo(f"./dev bench gpu: {error}", err=True)
        raise SystemExit(_NO_GPU) from None
    for name, value in machine.items():
        click.echo(f"{name + ':':<16}{value}")
    result = measure_gpu(GpuOptions(**options), click.echo)
    missed, failures = missed_goals(result), has_failed(result)
    if json_file is not None:
        content = {"machine": machine, **result, "missed_goals": missed, "failures": failures}
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    for goal in missed:
        click.echo(f"goal missed: {goal}")
    for failure in failures:
        click.echo(f"failed: {failure}")
    if failures:
        raise SystemExit(1)


def _machine() -> dict[str, Any]:
    from phalanx_tools.bench.report import describe_machine

    return {**describe_machine(), "command": " ".join(["phalanx", *sys.argv[1:]])}

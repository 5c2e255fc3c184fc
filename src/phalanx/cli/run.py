"""`phalanx run`: run a program on several ranks of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phalanx.jobs.job import Job


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "num_ranks", type=int, required=True, metavar="RANKS", help="The number of ranks.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.option("--gpus", metavar="SPEC",
              help='How many GPUs the ranks use, such as "1", or which: "0,1", "device=1", "all", "none". If there are '
                   "more ranks than GPUs, ranks share them.")  # fmt: skip
@click.option("--gpu-memory", metavar="SHARES",
              help='How much memory of a shared GPU each rank may use: "even", "free" (no limit), 0.2, 10GiB, or a '
                   "list with one entry for each rank [default: PHALANX_GPU_MEMORY, else even].")  # fmt: skip
@click.option("--virtual-gpus", "num_virtual", type=click.IntRange(1, 64), metavar="N",
              help="Give all ranks N virtual GPUs, which compute on the CPU, and let phalanx stand in for "
                   "NCCL.")  # fmt: skip
@click.option("--virtual-memory", metavar="SIZE", help="The memory of each virtual GPU [default: 16GiB].")
@click.option("--races", type=click.Choice(["off", "warn", "raise"]),
              help="Find streams of virtual GPUs that use the same memory without waiting for each other "
                   "[default: off].")  # fmt: skip
@click.option("--threads-per-rank", "num_threads", type=click.IntRange(min=1), metavar="N",
              help="The number of torch threads in each rank [default: OMP_NUM_THREADS, else cores // "
                   "ranks].")  # fmt: skip
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable for all ranks; may be repeated.",
)
@click.option("--log-dir", "log_folder", type=click.Path(path_type=Path), metavar="DIR",
              help="Save the output of each rank in DIR/rank-<r>.out and DIR/rank-<r>.err.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="End the job after this time, with exit code 124.")  # fmt: skip
@click.option("--restart", "max_restarts", type=click.IntRange(min=0), default=0, metavar="N",
              help="After a failure, start all ranks again, up to N times.")  # fmt: skip
@click.option("--grace", "grace_s", type=click.FloatRange(min=0), metavar="SECONDS",
              help="How long to wait at each step when ranks are ended: for them to end by themselves, then after "
                   "SIGTERM [default: PHALANX_GRACE_S, else 1].")  # fmt: skip
@click.option("--name", help="The name of the job [default: the program's name].")
@click.option("--trace", "trace_folder", type=click.Path(path_type=Path), metavar="DIR",
              help="Record all operations, and write a timeline to DIR.")  # fmt: skip
@click.option("--warn-after", "warn_after_s", type=click.FloatRange(min=0), default=30.0, show_default=True,
              metavar="SECONDS",
              help="When a rank has waited this long, print which rank it waits for; 0 turns this off.")  # fmt: skip
@click.option("--live/--plain", "is_live", default=None,
              help="Show a table of all ranks below their output, or only the output [default: live on a "
                   "terminal].")  # fmt: skip
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(num_ranks: int, program: str, arguments: tuple[str, ...], **options: object) -> None:
    """Run PROGRAM with its ARGUMENTS on several ranks of this machine.

    PROGRAM is a script, or a folder or archive that contains __main__.py. It runs as it would under python, and finds
    the variables that torchrun sets. Options of phalanx come before PROGRAM, and options of the program come after it.

    The exit code is that of the first rank that failed.
    """
    from phalanx.errors import UsageError
    from phalanx.jobs.launcher import run_job

    try:
        code = run_job(_make_job(num_ranks, program, arguments, **options))  # type: ignore[arg-type]
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(code)


def _make_job(  # noqa: PLR0913
    num_ranks: int,
    program: str,
    arguments: tuple[str, ...],
    *,
    is_module: bool,
    gpus: str | None,
    gpu_memory: str | None,
    num_virtual: int | None,
    virtual_memory: str | None,
    races: str | None,
    num_threads: int | None,
    variables: tuple[str, ...],
    log_folder: Path | None,
    timeout_s: float | None,
    max_restarts: int,
    grace_s: float | None,
    name: str | None,
    trace_folder: Path | None,
    warn_after_s: float,
    is_live: bool | None,
) -> Job:
    from phalanx.jobs.environment import parse_variables
    from phalanx.jobs.job import Job, check_num_ranks, default_threads, make_trace_folder
    from phalanx.jobs.program import find_program
    from phalanx.jobs.real_gpus import plan_gpus
    from phalanx.jobs.virtual_gpus import GpuOptions, with_virtual_gpus
    from phalanx.settings import copy_environment, read_settings

    check_num_ranks(num_ranks)
    found = find_program(program, arguments, is_module=is_module)
    given = parse_variables(variables)
    options = GpuOptions(gpus, num_virtual, virtual_memory, races)
    plan = plan_gpus(gpus, gpu_memory, with_virtual_gpus(options, copy_environment(**given), given), num_ranks)
    environment = plan.environment
    if trace_folder is not None:
        trace_folder = make_trace_folder(trace_folder)
        environment["PHALANX_TRACE"] = str(trace_folder)
    return Job(
        program=found,
        num_ranks=num_ranks,
        environment=environment,
        num_threads=default_threads(num_ranks) if num_threads is None else num_threads,
        grace_s=read_settings().grace_s if grace_s is None else grace_s,
        name=name or found.name,
        timeout_s=timeout_s,
        max_restarts=max_restarts,
        log_folder=log_folder,
        trace_folder=trace_folder,
        warn_after_s=warn_after_s,
        is_live=_is_capable_terminal(environment) if is_live is None else is_live,
        rank_variables=plan.rank_variables,
        note=plan.note,
    )


def _is_capable_terminal(environment: dict[str, str]) -> bool:
    return os.isatty(1) and os.isatty(2) and environment.get("TERM", "dumb") != "dumb"

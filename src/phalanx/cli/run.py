"""`phalanx run`: run a program on several ranks of this machine, or of several."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from phalanx.cli.completion import (
    ProgramCommand,
    complete_file,
    complete_folder,
    complete_gpu_model,
    complete_program,
)
from phalanx.cli.host_options import HostOptions, host_options, plan_hosts, take_host_options
from phalanx.cli.numbers import Seconds, WholeNumber
from phalanx.cli.torchrun_options import refuse_torchrun_options

if TYPE_CHECKING:
    from phalanx.jobs.job import Job


class _OptionOfTwoNames(click.Option):
    """An option whose names must not contradict each other. If one name occurs twice, the last one counts, as usual.

    So the command can overrule what a shell alias says.
    """

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser tell the names apart."""
        for name in self.opts:
            parser.add_option(obj=self, opts=[name], dest=self._key(name), action="store", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value, whichever name it has.

        Raises:
            click.UsageError: The names have different values.
        """
        given = list(dict.fromkeys(opts[key] for key in map(self._key, self.opts) if key in opts))
        if len(given) > 1:
            names, texts = " and ".join(self.opts), " and ".join(map(str, given))
            raise click.UsageError(f"{names} mean the same, and you gave {texts}; give it once")
        return super().consume_value(ctx, {str(self.name): value for value in given})

    def _key(self, name: str) -> str:
        return f"{self.name} {name}"


def _take_num_ranks(context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    """Return the number of ranks, or the name that torchrun has for a number."""
    if text is None or text in ("gpu", "cpu", "auto"):
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number of ranks; give a number, gpu, cpu or auto", context, option
        ) from None


def _with_hyphens(name: str) -> str:
    """Spell an option with hyphens: torchrun also understands underscores, as in --nproc_per_node."""
    return name.replace("_", "-")


@click.command(
    cls=ProgramCommand, context_settings={"allow_interspersed_args": False, "token_normalize_func": _with_hyphens}
)
@click.option("-n", "--nproc-per-node", "num_ranks", cls=_OptionOfTwoNames, callback=_take_num_ranks,
              metavar="RANKS",
              help="The number of ranks; or gpu: one per GPU; cpu: one per core; auto: gpu if there is one, else cpu "
                   "[default: one per GPU, else one per core up to 4].")  # fmt: skip
@click.option("-m", "--module", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.option("--no-python", "is_executable", is_flag=True,
              help="PROGRAM is an executable, which every rank runs without Python.")  # fmt: skip
@click.option("--gpus", metavar="SPEC",
              help='How many GPUs the ranks use, such as "1", or which: "0,1", "device=1", "all", "none". If there are '
                   "more ranks than GPUs, ranks share them.")  # fmt: skip
@click.option("--gpu-memory", metavar="SHARES",
              help='How much memory of a shared GPU each rank may use: "even", "free" (no limit), 0.2, 10GiB, or a '
                   "list with one entry for each rank [default: PHALANX_GPU_MEMORY, else even].")  # fmt: skip
@click.option("--virtual-gpus", "num_virtual", type=WholeNumber(1, 64), metavar="N",
              help="Give all ranks N virtual GPUs, which compute on the CPU, and let phalanx stand in for "
                   "NCCL.")  # fmt: skip
@click.option("--virtual-gpu", "model", metavar="MODEL", shell_complete=complete_gpu_model,
              help="What virtual GPUs claim to be, such as h100: their name, compute capability, multiprocessors and "
                   "memory [default: PHALANX_VIRTUAL_GPU, else plain].")  # fmt: skip
@click.option("--virtual-memory", metavar="SIZE",
              help="The memory of each virtual GPU [default: 16GiB, or that of the model].")  # fmt: skip
@click.option("--races", type=click.Choice(["off", "warn", "raise"]),
              help="Find streams of virtual GPUs that use the same memory without waiting for each other "
                   "[default: off].")  # fmt: skip
@click.option("--stand-in", "stood_in_for", type=click.Choice(["nccl", "gloo", "mpi"]), multiple=True,
              help="Let phalanx stand in for this backend in all ranks; may be repeated.")  # fmt: skip
@click.option("--threads-per-rank", "num_threads", type=WholeNumber(min=1), metavar="N",
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
              shell_complete=complete_folder,
              help="Save the output of each rank in DIR/rank-<r>.out and DIR/rank-<r>.err.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=Seconds(min=0, min_open=True), metavar="SECONDS",
              help="End the job after this time, with exit code 124.")  # fmt: skip
@click.option("--restart", "--max-restarts", "max_restarts", type=WholeNumber(min=0),
              cls=_OptionOfTwoNames, metavar="N",
              help="After a failure, start all ranks again, up to N times [default: 0].")  # fmt: skip
@click.option("--grace", "grace_s", type=Seconds(min=0), metavar="SECONDS",
              help="How long ranks have to end by themselves before they are ended, and then again after "
                   "SIGTERM [default: PHALANX_GRACE_S, else 1].")  # fmt: skip
@click.option("--name", help="The name of the job [default: the program's name].")
@click.option("--trace", "trace_folder", type=click.Path(path_type=Path), metavar="DIR",
              shell_complete=complete_folder,
              help="Record all operations, and write a timeline to DIR.")  # fmt: skip
@click.option("--warn-after", "warn_after_s", type=Seconds(min=0), default=30.0, show_default=True,
              metavar="SECONDS",
              help="When a rank has waited this long, print which rank it waits for; 0 turns this off.")  # fmt: skip
@click.option("--live/--plain", "is_live", default=None,
              help="Show a table of all ranks below their output, or only the output [default: live on a "
                   "terminal].")  # fmt: skip
@click.option("--full-trace", "is_full_trace", is_flag=True,
              help="Print every traceback of every rank, with the calls inside phalanx and torch [default: "
                   "PHALANX_FULL_TRACE].")  # fmt: skip
@click.option("--standalone", is_flag=True, expose_value=False,
              help="This changes nothing: without --nnodes, phalanx run uses only this machine.")  # fmt: skip
@host_options
@refuse_torchrun_options
@click.argument("program", shell_complete=complete_program)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_file)
def run(num_ranks: int | str | None, program: str, arguments: tuple[str, ...], **options: object) -> None:
    """Run PROGRAM with its ARGUMENTS on several ranks of this machine, or of several.

    PROGRAM is a script, or a folder or archive that contains __main__.py. It runs as it would under python, and finds
    the variables that torchrun sets. Options of phalanx come before PROGRAM, and options of the program come after it.

    The exit code is that of the first rank that failed.
    """
    from phalanx.errors import UsageError
    from phalanx.jobs.launcher import run_job

    try:
        hosts = take_host_options(options)
        code = run_job(_make_job(num_ranks, program, arguments, hosts, **options))  # type: ignore[arg-type]
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(code)


def _make_job(  # noqa: PLR0913
    asked: int | str | None,
    program: str,
    arguments: tuple[str, ...],
    hosts: HostOptions,
    *,
    is_module: bool,
    is_executable: bool,
    gpus: str | None,
    gpu_memory: str | None,
    num_virtual: int | None,
    model: str | None,
    virtual_memory: str | None,
    races: str | None,
    stood_in_for: tuple[str, ...],
    num_threads: int | None,
    variables: tuple[str, ...],
    log_folder: Path | None,
    timeout_s: float | None,
    max_restarts: int | None,
    grace_s: float | None,
    name: str | None,
    trace_folder: Path | None,
    warn_after_s: float,
    is_live: bool | None,
    is_full_trace: bool,
) -> Job:
    from phalanx.jobs.environment import parse_variables
    from phalanx.jobs.job import Job, choose_num_ranks, default_threads, make_trace_folder
    from phalanx.jobs.program import find_executable, find_program
    from phalanx.jobs.real_gpus import assign_gpus
    from phalanx.jobs.virtual_gpus import GpuOptions, with_virtual_gpus
    from phalanx.settings import copy_environment, full_trace, read_settings

    if is_module and is_executable:
        raise click.UsageError("PROGRAM is either a module (--module) or an executable (--no-python); give one of them")
    given = parse_variables(variables)
    if is_executable:
        found = find_executable(program, arguments, search=given.get("PATH"))
    else:
        found = find_program(program, arguments, is_module=is_module)
    options = GpuOptions(gpus, num_virtual, model, virtual_memory, races, stood_in_for)
    seen = with_virtual_gpus(options, copy_environment(**given), given)
    num_ranks, reason = choose_num_ranks(asked, gpus, seen)
    assigned = assign_gpus(gpus, gpu_memory, seen, num_ranks)
    environment = assigned.environment
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
        max_restarts=max_restarts or 0,
        log_folder=log_folder,
        trace_folder=trace_folder,
        warn_after_s=warn_after_s,
        is_live=_is_capable_terminal(environment) if is_live is None else is_live,
        rank_variables=assigned.rank_variables,
        note="; ".join(filter(None, (reason, assigned.note))),
        is_full_trace=is_full_trace or full_trace(environment),
        hosts=plan_hosts(hosts, seen, 1 + len(arguments)),
    )


def _is_capable_terminal(environment: dict[str, str]) -> bool:
    return os.isatty(1) and os.isatty(2) and environment.get("TERM", "dumb") != "dumb"

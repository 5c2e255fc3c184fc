"""`./dev upstream`: torch's own distributed and multi-GPU tests, run against phalanx."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from phalanx_tools.conformance.matrix import Part, Union
    from phalanx_tools.conformance.outcomes import Outcome, Report

_OWN_MODES = ("plain", "gloo", "nccl", "vgloo", "mpi")
_FILES = ("multigpu", "dist2")
_ONE_LINE = 160


@click.command()
@click.option("--mode", type=click.Choice([*_OWN_MODES, *_FILES, "all"]), default="plain", show_default=True,
              help="plain: phalanx under its own name. gloo: in place of Gloo. nccl, vgloo, mpi: on virtual GPUs, in "
              "place of NCCL, Gloo or MPI. multigpu, dist2: PyTorch's test_cuda_multigpu.py or test_dist2.py. all: "
              "nccl, vgloo and mpi, one after the other.")  # fmt: skip
@click.option(
    "--world",
    "world_size",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The number of ranks of each test.",
)
@click.option("--tests", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="The folder of PyTorch's sources, for the modes multigpu and dist2.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              help="How many seconds a test may take.")  # fmt: skip
@click.option("--forced", "is_forced", is_flag=True, help="Run only the tests that PyTorch has disabled.")
@click.option("--mutate", type=click.Choice(["no-sum", "no-data"]),
              help="Break the engine first, and check how many tests notice.")  # fmt: skip
@click.option("--at-least", "num_wanted", type=int, default=0, help="Fail if fewer tests pass.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all outcomes to this file."
)
@click.option("--verbose", "-v", is_flag=True, help="Print every test that ran.")
@click.argument("names", nargs=-1)
def upstream(**options: Any) -> None:
    """Run PyTorch's own distributed tests against phalanx, all of them or only those in NAMES.

    The exit code is 1 if a test failed.
    """
    from phalanx.errors import UsageError

    asked = _Asked(**options)
    progress = _Progress(asked.verbose, tells_failures=asked.mutate is None)
    runs: dict[str, _Run] = {"all": _run_all, "multigpu": _run_file, "dist2": _run_file}
    try:
        result, is_good = runs.get(asked.mode, _run_one)(asked, progress)
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    if asked.json_file is not None:
        asked.json_file.write_text(json.dumps(result.as_json(), indent=1) + "\n")
    if result.num_passed() < asked.num_wanted:
        click.echo(f"that is less than the {asked.num_wanted} asked for")
        is_good = False
    raise SystemExit(0 if is_good else 1)


@dataclass(frozen=True)
class _Asked:
    """What the user asked for."""

    mode: str
    world_size: int
    folder: Path | None
    timeout_s: float
    is_forced: bool
    mutate: str | None
    num_wanted: int
    json_file: Path | None
    verbose: bool
    names: tuple[str, ...]


_Run = Callable[[_Asked, "_Progress"], "tuple[Report | Union, bool]"]


def _run_one(asked: _Asked, progress: _Progress) -> tuple[Report, bool]:
    from phalanx_tools.conformance.upstream import run_upstream

    report = run_upstream(
        asked.mode, asked.world_size, names=asked.names, timeout_s=asked.timeout_s, is_forced=asked.is_forced,
        is_all=bool(asked.names), mutation=asked.mutate, watch=progress.of(f"{asked.mode} world {asked.world_size}"),
    )  # fmt: skip
    progress.clear()
    if asked.mutate is not None:
        return report, _tell_who_noticed(report, asked.mutate, len(asked.names))
    _tell(report)
    return report, not report.with_status("failed")


def _tell_who_noticed(report: Report, mutate: str, num_named: int) -> bool:
    from phalanx_tools.conformance.mutations import MUTATIONS

    mutation = MUTATIONS[mutate]
    noticed, passed = report.with_status("failed"), report.with_status("passed")
    num_wanted = num_named or mutation.least_noticed
    for outcome in passed:
        click.echo(f"  did not notice: {outcome.name}")
    click.echo(
        f"upstream {report.mode} {report.place}, {mutation.about}: {len(noticed)} tests noticed, "
        f"{len(passed)} did not, at least {num_wanted} have to"
    )
    return len(noticed) >= num_wanted


def _run_file(asked: _Asked, progress: _Progress) -> tuple[Report, bool]:
    from phalanx.errors import UsageError
    from phalanx_tools.conformance.test_files import run_file

    if asked.folder is None:
        raise UsageError(
            f"mode {asked.mode} runs a file that is not in the wheel; say where PyTorch's sources are: --tests folder "
            "(PYTORCH_TESTS=folder with make)"
        )
    report = run_file(
        asked.mode, asked.folder, names=asked.names, timeout_s=asked.timeout_s, watch=progress.of(asked.mode)
    )
    progress.clear()
    _tell(report)
    return report, not report.with_status("failed")


def _run_all(asked: _Asked, progress: _Progress) -> tuple[Union, bool]:
    from phalanx.errors import UsageError
    from phalanx_tools.conformance.matrix import FORCED_PARTS, PARTS, run_matrix

    if asked.names or asked.mutate:
        raise UsageError("mode all runs all tests; to run single tests, or to use --mutate, choose another mode")

    def when_done(_: Part, report: Report) -> None:
        progress.clear()
        click.echo(report.summary())

    union = run_matrix(
        FORCED_PARTS if asked.is_forced else PARTS, timeout_s=asked.timeout_s, is_forced=asked.is_forced,
        watch=lambda part, *outcome: progress.of(str(part))(*outcome), when_done=when_done,
    )  # fmt: skip
    for name in union.passed() if asked.is_forced else ():
        click.echo(f"  passed when forced: {name}")
    for name, reason in union.rest():
        click.echo(f"  not passed: {name}: {_in_one_line(reason)}")
    for report, outcome in union.failed():
        click.echo(f"  FAILED {outcome.name} in {report.mode} {report.place}")
    click.echo(union.summary())
    return union, asked.is_forced or not union.failed()


def _in_one_line(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return line if len(line) <= _ONE_LINE else line[:_ONE_LINE] + "..."


def _tell(report: Report) -> None:
    for reason, count in report.skip_reasons():
        click.echo(f"  skipped {count:3d}: {reason}")
    slowest = sorted(report.outcomes, key=lambda outcome: -outcome.seconds)[:3]
    click.echo("  slowest: " + ", ".join(f"{outcome.name} {outcome.seconds:.1f} s" for outcome in slowest))
    for outcome in report.with_status("failed"):
        click.echo(f"  FAILED {outcome.name}")
    click.echo(report.summary())


class _Progress:
    """What is shown while tests run: one line that is written over, failures with their reasons, and all when asked."""

    def __init__(self, is_verbose: bool, *, tells_failures: bool) -> None:
        self._is_verbose, self._tells_failures = is_verbose, tells_failures
        self._is_watched = sys.stderr.isatty()

    def of(self, where: str) -> Callable[[Outcome, int, int], None]:
        """Return who is to be told of outcomes there."""

        def watch(outcome: Outcome, num_done: int, num_all: int) -> None:
            is_bad = outcome.status == "failed" and self._tells_failures
            if is_bad or (self._is_verbose and outcome.status != "skipped"):
                self.clear()
                head = f"{where} [{num_done}/{num_all}] {outcome.name}"
                click.echo(f"{head}: {outcome.status} in {outcome.seconds:.1f} s")
            if is_bad:
                click.echo("    " + outcome.reason.replace("\n", "\n    "))
            if self._is_watched:
                click.echo(f"\r\x1b[K{where} [{num_done}/{num_all}] {outcome.name}", nl=False, err=True)

        return watch

    def clear(self) -> None:
        """Remove the line."""
        if self._is_watched:
            click.echo("\r\x1b[K", nl=False, err=True)

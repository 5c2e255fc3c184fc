"""`./dev bench`: measure, print the table, write the files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.command_group import CommandGroup
from phalanx_tools.commands.bench_gpu import gpu
from phalanx_tools.commands.bench_hosts import hosts
from phalanx_tools.commands.lists import names_of, positive_numbers

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx_tools.bench.cases import Case, Sample

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "send_recv")
_CONTENDERS = ("phalanx", "phalanx_torch", "gloo", "openmpi", "mpich", "copy", "torch_alone")
_SIZES = "4,4096,65536,1048576,16777216,67108864"


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    return _default_ranks() if text is None else positive_numbers(context, option, text)


def _default_ranks() -> tuple[int, ...]:
    from phalanx.engine import usable_cores

    return (2, 4, 8, 16) if usable_cores() >= 16 else (2, 4, 8)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Compare the speed of phalanx with Gloo, OpenMPI and MPICH."""


bench.add_command(gpu)
bench.add_command(hosts)

_ranks_option = click.option(
    "--ranks",
    callback=_numbers,
    default=None,
    help="The numbers of ranks [default: 2,4,8; also 16 if there are enough cores].",
)
_rounds_option = click.option("--rounds", default=7, show_default=True, help="How often each contender takes its turn.")


@bench.command()
@click.option(
    "--operations",
    callback=names_of(*_OPERATIONS),
    default=",".join(_OPERATIONS),
    show_default=True,
    help="The operations to measure.",
)
@_ranks_option
@click.option(
    "--sizes",
    callback=_numbers,
    default=_SIZES,
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
@_rounds_option
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file."
)
def collectives(
    operations: tuple[str, ...],
    ranks: tuple[int, ...],
    sizes: tuple[int, ...],
    contenders: tuple[str, ...],
    rounds: int,
    json_file: Path | None,
) -> None:
    """Measure collectives and messages, and print a table of ratios."""
    from phalanx_tools.bench.cases import all_cases
    from phalanx_tools.bench.report import print_table, to_rows

    console = _console()
    samples = _measure(console, all_cases(operations, ranks, sizes), contenders, rounds, {})
    rows = to_rows("collectives", samples)
    print_table(console, rows)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    _exit_if_wrong(console, rows)


@bench.command(name="all")
@_ranks_option
@_rounds_option
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmarks/results"),
    show_default=True,
    help="The folder for the dated JSON file and the plots.",
)
@click.option("--label", default="", help="A word in the file names, such as the name of the machine.")
def everything(ranks: tuple[int, ...], rounds: int, folder: Path, label: str) -> None:
    """Run every section, and write a dated JSON file and plots."""
    from phalanx_tools.bench.cases import OPERATIONS, SIZES, Case, all_cases
    from phalanx_tools.bench.devices import describe, measure_devices
    from phalanx_tools.bench.memory import measure_memory
    from phalanx_tools.bench.report import describe_machine, join_samples, plot, print_table, to_rows
    from phalanx_tools.bench.startup import measure_startup

    console = _console()
    machine = describe_machine()
    versions: dict[str, str] = {}
    rows = to_rows("collectives", _measure(console, all_cases(OPERATIONS, ranks, SIZES), _CONTENDERS, rounds, versions))
    names = ("symmetric_all_reduce", "reference_copy", "reference_add", "all_reduce")
    symmetric = [Case(name, num_ranks, 64 << 20) for num_ranks in ranks for name in names]
    # In turns too: the machine's memory is not equally fast all the time.
    turns = [_measure(console, symmetric, ("phalanx",), 3, versions) for _ in range(rounds)]
    rows += to_rows("symmetric", join_samples(turns))
    rows += to_rows("training", _measure_training(console, [n for n in ranks if n <= 4], rounds, versions))
    console.print("starting 8 ranks ...")
    rows += to_rows("startup", measure_startup(8, 3))
    harness_rows, idle_memory = _measure_harnesses(console, (2, 4), 3)
    rows += harness_rows
    console.print("virtual devices ...")
    devices = measure_devices(rounds)
    console.print("100,000 collectives ...")
    memory = measure_memory(8, 100_000)
    print_table(console, [row for row in rows if row["section"] == "collectives"])
    _print_sections(console, [row for row in rows if row["section"] != "harness"], memory)
    _print_harnesses(console, harness_rows, idle_memory)
    console.print("\n".join(describe(devices)), highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join(part for part in (machine["date"][:10], f"{machine['cores']}-cores", label) if part)
    result = {
        "machine": machine,
        "versions": versions,
        "memory": memory,
        "idle_memory": idle_memory,
        "devices": devices,
        "rows": rows,
    }
    (folder / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    paths = plot([row for row in rows if row["section"] == "collectives"], folder, stem)
    console.print(f"written: {folder / stem}.json, {', '.join(str(path) for path in paths)}")
    _exit_if_wrong(console, rows)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=150)


def _measure(
    console: Console, cases: Sequence[Case], contenders: Sequence[str], rounds: int, versions: dict[str, str]
) -> list[Sample]:
    from rich.progress import Progress

    from phalanx_tools.bench.measure import measure_cases

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(cases))

        def on_case(case: Case) -> None:
            progress.update(task, advance=1, description=f"{case.operation} {case.ranks} ranks {case.bytes} B")

        def on_absent(name: str, reason: str) -> None:
            progress.console.print(f"[yellow]{name} does not take part:[/] {reason}")

        return measure_cases(cases, contenders, rounds, on_case, on_absent, versions)


def _measure_training(console: Console, ranks: Sequence[int], rounds: int, versions: dict[str, str]) -> list[Sample]:
    from phalanx_tools.bench.cases import TRAINING, TRAINING_CONTENDERS, Case

    cases = [Case(name, num_ranks, 40 << 20) for num_ranks in ranks for name in TRAINING]
    return _measure(console, cases, TRAINING_CONTENDERS, 2 * rounds, versions)


@bench.command()
@_ranks_option
@_rounds_option
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file."
)
def training(ranks: tuple[int, ...], rounds: int, json_file: Path | None) -> None:
    """Measure training steps with DDP and FSDP2, over phalanx and over Gloo."""
    from phalanx_tools.bench.report import to_rows

    console = _console()
    rows = to_rows("training", _measure_training(console, ranks, rounds, {}))
    _print_training(console, rows)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    _exit_if_wrong(console, rows)


@bench.command()
@click.option("--ranks", callback=_numbers, default="2,4", show_default=True, help="The numbers of ranks.")
@click.option("--rounds", default=3, show_default=True, help="How often each harness takes its turn.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file."
)
def harness(ranks: tuple[int, ...], rounds: int, json_file: Path | None) -> None:
    """Measure a trivial test on ranks, with torch's harnesses and with phalanx's pytest plugin."""
    from phalanx_tools.bench.report import describe_machine

    console = _console()
    rows, memory = _measure_harnesses(console, ranks, rounds)
    _print_harnesses(console, rows, memory)
    if json_file is not None:
        result = {"machine": describe_machine(), "idle_memory": memory, "rows": rows}
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    _exit_if_wrong(console, rows)


@bench.command(name="devices")
@_rounds_option
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file."
)
def virtual_devices(rounds: int, json_file: Path | None) -> None:
    """Compare virtual devices with the CPU: operations, set-up time and build time."""
    from phalanx_tools.bench.devices import describe, measure_devices
    from phalanx_tools.bench.report import describe_machine

    console = _console()
    with console.status("measuring virtual devices"):
        result = measure_devices(rounds)
    console.print("\n".join(describe(result)), highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": describe_machine(), **result}, indent=1) + "\n")


def _measure_harnesses(
    console: Console, ranks: Sequence[int], rounds: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    from phalanx_tools.bench.harness import measure_harnesses, measure_idle_memory
    from phalanx_tools.bench.report import to_rows

    with console.status("measuring harnesses") as status:
        rows = to_rows("harness", measure_harnesses(ranks, rounds, status.update))
        return rows, measure_idle_memory(8)


def _print_harnesses(console: Console, rows: Sequence[dict[str, Any]], memory: dict[str, int]) -> None:
    times = {(row["ranks"], row["contender"]): row["median_s"] for row in rows}
    for (num_ranks, name), seconds in times.items():
        slowest = times[num_ranks, "torch_multi_process_gloo"]
        console.print(f"{name}, {num_ranks} ranks: {seconds * 1e3:.1f} ms a test, {slowest / seconds:.0f}x")
    console.print(
        f"{memory['ranks']} idle ranks: {memory['idle_ranks_bytes'] / 2**20:.0f} MiB, with pytest "
        f"{memory['with_pytest_bytes'] / 2**20:.0f} MiB; one process with torch "
        f"{memory['torch_process_bytes'] / 2**20:.0f} MiB"
    )


def _print_training(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    times = {(row["operation"], row["ranks"], row["contender"]): row["median_s"] * 1e3 for row in rows}
    for operation, without in (("ddp_step", "silent_ddp_step"), ("fsdp_step", "local_step")):
        for num_ranks in sorted({row["ranks"] for row in rows}):
            step = {name: times[operation, num_ranks, name] for name in ("phalanx_torch", "gloo")}
            added = {name: step[name] - times[without, num_ranks, name] for name in step}
            ours, gloo = added["phalanx_torch"], added["gloo"]
            console.print(
                f"{operation}, {num_ranks} ranks: {step['phalanx_torch']:.1f} ms over phalanx, "
                f"{step['gloo']:.1f} ms over gloo; communication {ours:.1f} ms against {gloo:.1f} ms"
                + (f", {gloo / ours:.1f}x" if ours > 0.1 else ": hidden behind the step, or too little to measure")
            )


def _print_sections(console: Console, rows: Sequence[dict[str, Any]], memory: dict[str, int]) -> None:
    times = {
        (row["operation"], row["ranks"], row["contender"]): row["median_s"]
        for row in rows
        if row["section"] != "collectives"
    }
    for (operation, num_ranks, _), seconds in times.items():
        if operation == "symmetric_all_reduce":
            least = min(times["reference_copy", num_ranks, "phalanx"], times["reference_add", num_ranks, "phalanx"])
            console.print(
                f"symmetric 64 MiB all_reduce, {num_ranks} ranks: {seconds * 1e3:.2f} ms, "
                f"{seconds / least:.2f}x of plain copies and adds ({least * 1e3:.2f} ms)"
            )
    _print_training(console, [row for row in rows if row["section"] == "training"])
    slow = times["spawn", 8, "torch_spawn_gloo"]
    for name in ("phalanx", "phalanx_warm"):
        seconds = times["spawn", 8, name]
        faster = f"{slow / seconds:.1f}x faster than torch ({slow:.1f} s)"
        console.print(f"starting 8 ranks, {name}: {seconds:.3f} s, {faster}")
    console.print(f"importing torch once, in a fresh process: {times['spawn', 8, 'import_torch']:.3f} s")
    console.print(
        f"memory: {memory['segment_bytes'] / 2**20:.1f} MiB shared for {memory['ranks']} ranks; "
        f"growth over {memory['collectives']} collectives {memory['growth_bytes'] / 2**10:.0f} KiB"
    )


def _exit_if_wrong(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    wrong = [row for row in rows if not row["correct"]]
    if wrong:
        console.print(f"[red]{len(wrong)} rows have wrong results[/]")
        raise SystemExit(1)

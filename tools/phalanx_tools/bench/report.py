"""Rows, tables of ratios and plots from samples."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phalanx.engine import usable_cores
from phalanx_tools.bench.cases import CALL_BYTES, CONTENDERS, Sample

Row = dict[str, Any]


def to_rows(section: str, samples: Iterable[Sample]) -> list[Row]:
    """Return one row per sample: median and spread."""
    rows = []
    for sample in samples:
        ordered = sorted(sample.times_s)
        last = len(ordered) - 1
        rows.append(
            {
                "section": section,
                "operation": sample.case.operation,
                "ranks": sample.case.ranks,
                "bytes": sample.case.bytes,
                "contender": sample.contender,
                "median_s": statistics.median(ordered),
                "p10_s": ordered[round(last * 0.1)],
                "p90_s": ordered[round(last * 0.9)],
                "correct": sample.is_correct,
            }
        )
    return rows


def join_samples(turns: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Put the times of several turns over the same cases together."""
    joined = []
    for samples in zip(*turns, strict=True):
        times = tuple(time for sample in samples for time in sample.times_s)
        is_correct = all(sample.is_correct for sample in samples)
        joined.append(Sample(samples[0].case, samples[0].contender, times, is_correct))
    return joined


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": model,
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _by_case(rows: Sequence[Row]) -> dict[tuple[str, int, int], dict[str, Row]]:
    cases: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row["operation"], row["ranks"], row["bytes"]), {})[row["contender"]] = row
    return cases


def ratios(rows: Sequence[Row], rival: str, ours: str = "phalanx") -> dict[tuple[str, int, int], float]:
    """Return the rival's median over ours per case; "mpi" is the better of the two."""
    names = ("openmpi", "mpich") if rival == "mpi" else (rival,)
    result = {}
    for case, contenders in _by_case(rows).items():
        times = [contenders[name]["median_s"] for name in names if name in contenders]
        if times and ours in contenders:
            result[case] = min(times) / contenders[ours]["median_s"]
    return result


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; nan of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def _size(count: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count // scale} {unit}"
    return f"{count} B" if count else "-"


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.1f} us"
        if seconds < 1e-3
        else f"{seconds * 1e3:.2f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def print_table(console: Console, rows: Sequence[Row]) -> None:
    """Print medians, the spread of phalanx, and how many times faster phalanx is than each rival."""
    names = [name for name in CONTENDERS if any(row["contender"] == name for row in rows)]
    table = Table(title="median time of one operation; x: times phalanx is faster", title_justify="left")
    for column in ("operation", "ranks", "size"):
        table.add_column(column, justify="right" if column != "operation" else "left", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        if name == "phalanx":
            table.add_column("p10-p90", justify="right", no_wrap=True)
    against = {"gloo": ratios(rows, "gloo"), "mpi": ratios(rows, "mpi")}
    through_torch = ratios(rows, "gloo", "phalanx_torch")
    if through_torch:
        against["gloo, through torch"] = through_torch
    for name in against:
        table.add_column(f"x {name}", justify="right", no_wrap=True)
    for case, contenders in _by_case(rows).items():
        cells = [case[0], str(case[1]), _size(case[2])]
        for name in names:
            row = contenders.get(name)
            cells.append("-" if row is None else _time(row["median_s"]) + ("" if row["correct"] else " WRONG"))
            if name == "phalanx" and row is not None:
                cells.append(f"{_time(row['p10_s'])}-{_time(row['p90_s'])}")
        for values in against.values():
            ratio = values.get(case)
            style = "" if ratio is None or ratio >= 1 else "[red]"
            cells.append("-" if ratio is None else f"{style}{ratio:.3g}")
        table.add_row(*cells)
    console.print(table)
    floors = {"copy": "a plain copy of the bytes"}
    what = "gloo (100 up to 4 KiB, 20 up to 64 KiB, 4 above)"
    _print_bounded(console, rows, against["gloo"], asked_of_gloo, floors, what)
    if through_torch:
        floors["torch_alone"] = "torch's own calls, over a backend that meets nobody,"
        what = "gloo through torch (30 up to 64 KiB, 4 above)"
        _print_bounded(console, rows, through_torch, asked_through_torch, floors, what)
    for name, values in against.items():
        if values:
            worst = min(values, key=lambda case: values[case])
            console.print(
                f"against {name}: geometric mean {geometric_mean(values.values()):.2f}x over {len(values)} rows, "
                f"worst {values[worst]:.2f}x ({worst[0]}, {worst[1]} ranks, {_size(worst[2])})"
            )


def _print_bounded(
    console: Console,
    rows: Sequence[Row],
    achieved: dict[tuple[str, int, int], float],
    asked: Callable[[int], float],
    floors: dict[str, str],
    what: str,
) -> None:
    """Say where the asked distance from Gloo is more than the machine, or torch, allows.

    Args:
        console: Where to say it.
        rows: All that was measured.
        achieved: The distances, by case.
        asked: What is asked of an operation of so many bytes.
        floors: Contenders that do only what can't be avoided, and what that is.
        what: Of which distances this is.
    """
    references = [ratios(rows, "gloo", name) for name in floors]
    short = [case for case, ratio in achieved.items() if ratio < asked(case[2])]
    bounded = [case for case in short if any(case in least and least[case] < asked(case[2]) for least in references)]
    console.print(
        f"below the asked ratio to {what}: {len(short)} of {len(achieved)} rows; in {len(bounded)} of them "
        f"{' or '.join(floors.values())} would be too"
    )


def asked_of_gloo(size: int) -> float:
    """How many times faster than Gloo an operation of this size is meant to be."""
    return 100 if size <= 4096 else 20 if size <= 65536 else 4


def asked_through_torch(size: int) -> float:
    """The same for calls through torch.distributed."""
    return 30 if size <= CALL_BYTES else 4


def plot(rows: Sequence[Row], folder: Path, stem: str) -> list[Path]:
    """Draw how cost grows: time against ranks at a fixed size, and against size at fixed ranks."""
    import matplotlib

    matplotlib.use("Agg")
    paths = []
    for axis, fixed in (("ranks", "bytes"), ("bytes", "ranks")):
        path = folder / f"{stem}-time-against-{axis}.png"
        _plot_growth(rows, axis, fixed, path)
        paths.append(path)
    return paths


def _plot_growth(rows: Sequence[Row], axis: str, fixed: str, path: Path) -> None:
    from matplotlib import pyplot

    rows = [row for row in rows if row["operation"] == "all_reduce"]
    panels = sorted({row[fixed] for row in rows})
    figure, axes = pyplot.subplots(1, max(len(panels), 1), figsize=(3.2 * max(len(panels), 1), 3.4), squeeze=False)
    for panel, value in zip(axes[0], panels, strict=False):
        for name in CONTENDERS:
            points = sorted(
                (row[axis], row["median_s"] * 1e6, row["p10_s"] * 1e6, row["p90_s"] * 1e6)
                for row in rows
                if row[fixed] == value and row["contender"] == name
            )
            if points:
                places, middle, low, high = zip(*points, strict=True)
                (line,) = panel.plot(places, middle, marker="o", label=name)
                panel.fill_between(places, low, high, alpha=0.15, color=line.get_color())
        panel.set_title(_size(value) if fixed == "bytes" else f"{value} ranks")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("ranks" if axis == "ranks" else "bytes")
        panel.grid(alpha=0.3)
        if axis == "ranks":
            ticks = sorted({row["ranks"] for row in rows})
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
    axes[0][0].set_ylabel("microseconds")
    axes[0][0].legend()
    figure.suptitle("all_reduce: median, band from p10 to p90")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

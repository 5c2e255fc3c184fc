"""Starts the ranks of every section, one section after the other. This process never touches CUDA: ranks are forked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import PhalanxError, UsageError
from phalanx.launch.spawn import spawn
from phalanx_tools.bench.cases import Sample, all_cases
from phalanx_tools.bench.gpu.goals import CONTENDERS, JUDGED_RANKS, OPERATIONS, RANKS, SIZES, goal_of, has_training_goal
from phalanx_tools.bench.gpu.report import HEAD, to_gpu_rows, training_lines

_LONGEST_SECTION_S = 300.0
_TRAINING_S = 75.0  # kept free for it
_MANY_RANKS = 8

Tell = Callable[[str], None]


@dataclass(frozen=True)
class GpuOptions:
    """What to measure.

    Attributes:
        operations: Which collectives.
        ranks: Numbers of ranks.
        sizes: Bytes of the largest tensor of a rank.
        contenders: Who takes part.
        rounds: Turns of each.
        time_limit_s: When to begin nothing more; a case that has begun is finished.
        with_training: Whether to measure training steps.
        sequences: The whole batch of a training step.
        device: "cuda", or "cpu" to try the program itself.
    """

    operations: tuple[str, ...] = OPERATIONS
    ranks: tuple[int, ...] = RANKS
    sizes: tuple[int, ...] = SIZES
    contenders: tuple[str, ...] = CONTENDERS
    rounds: int = 5
    time_limit_s: float = 230.0
    with_training: bool = True
    sequences: int = 64
    device: str = "cuda"


def describe_gpu() -> dict[str, Any]:
    """Say which GPU ranks will share.

    Raises:
        UsageError: There is none.
    """
    (facts,) = spawn(_look_at_gpu, ranks=1, timeout_s=_LONGEST_SECTION_S)
    if facts is None:
        raise UsageError(
            "this measures ranks that share a GPU, and torch sees none here\n"
            "  do       run it where `python -c 'import torch; print(torch.cuda.is_available())'` prints True"
        )
    return {**facts, "driver": _driver_version()}


def _look_at_gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        words = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return words[0] if words else "unknown"


def measure_gpu(options: GpuOptions, tell: Tell) -> dict[str, Any]:
    """Measure everything; tell each result as soon as it is there. A section that fails leaves a note."""
    until = time.monotonic() + options.time_limit_s
    notes: list[str] = []
    copy = spawn(_copy_bandwidth, ranks=1, args=(options.device, options.rounds), timeout_s=_LONGEST_SECTION_S)[0]
    tell(f"plain copy of {copy['tensor_bytes'] / 2**20:.0f} MiB: {copy['bytes_per_s'] / 1e9:.0f} GB/s read and written")
    tell(HEAD)
    until_training = until - (_TRAINING_S if options.with_training else 0.0)
    samples: list[Sample] = []
    for num_ranks in options.ranks:
        samples += _measure_ranks(options, num_ranks, copy["bytes_per_s"], until_training, notes)
    training = _measure_training(options, until, notes, tell) if options.with_training else []
    for note in notes:
        tell(f"note: {note}")
    rows = to_gpu_rows(samples, copy["bytes_per_s"])
    unmeasured = _unmeasured(options, rows, training)
    return {"copy": copy, "rows": rows, "training": training, "notes": notes, "unmeasured": unmeasured}


def _unmeasured(options: GpuOptions, rows: list[dict[str, Any]], training: list[dict[str, Any]]) -> list[str]:
    """Return what has a goal and no row."""
    measured = {(row["operation"], row["ranks"], row["bytes"]) for row in rows if row["contender"] == "phalanx"}
    asked = [case for case in all_cases(options.operations, options.ranks, options.sizes) if goal_of(case) is not None]
    absent = [
        f"{case.operation}, {case.ranks} ranks, {case.bytes} B"
        for case in asked
        if (case.operation, case.ranks, case.bytes) not in measured
    ]
    trained = {_way(row) for row in training}
    ways = _ways_to_train(options.ranks) if options.with_training else []
    return absent + [_training_name(way) for way in ways if has_training_goal(*way) and way not in trained]


def _ways_to_train(ranks: tuple[int, ...]) -> list[tuple[str, int, bool]]:
    """Return backend, number of ranks and gradient_as_bucket_view of every training run; what is judged comes first."""
    few = min(JUDGED_RANKS, max(ranks))
    many = [_MANY_RANKS] if max(ranks) >= _MANY_RANKS else []
    shared = [("phalanx", few), *(("phalanx", number) for number in many), ("gloo", few)]
    return [("alone", 1, False), *((*run, is_view) for run in shared for is_view in (True, False))]


def _way(row: dict[str, Any]) -> tuple[str, int, bool]:
    return row["backend"], row["ranks"], row["gradient_as_bucket_view"]


def _training_name(way: tuple[str, int, bool]) -> str:
    backend, num_ranks, is_view = way
    return f"training over {backend}, {num_ranks} ranks" + (", gradient_as_bucket_view=True" if is_view else "")


def _copy_bandwidth(device: str, rounds: int) -> dict[str, Any]:
    from phalanx_tools.bench.gpu.collectives import copy_bandwidth

    return copy_bandwidth(device, rounds)


def _measure_ranks(
    options: GpuOptions, num_ranks: int, copy_bytes_per_s: float, until: float, notes: list[str]
) -> list[Sample]:
    from phalanx_tools.bench.gpu.collectives import Request, measure_on_rank

    cases = tuple(all_cases(options.operations, (num_ranks,), options.sizes))
    sys.stdout.flush()  # ranks write to the same place
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        request = Request(cases, options.contenders, options.rounds, options.device, store, until, copy_bytes_per_s)
        try:
            outcome = spawn(measure_on_rank, ranks=num_ranks, args=(request,), timeout_s=_LONGEST_SECTION_S)[0]
        except (PhalanxError, RuntimeError, OSError) as error:
            notes.append(f"collectives of {num_ranks} ranks: {type(error).__name__}: {error}")
            return []
    notes += outcome.notes
    return list(outcome.samples)


def _measure_training(options: GpuOptions, until: float, notes: list[str], tell: Tell) -> list[dict[str, Any]]:
    from phalanx_tools.bench.gpu.training import Shape, TrainingRequest, train_on_rank

    shape = Shape() if options.device == "cuda" else Shape(1, 16, 2, 64, 8)
    rows: list[dict[str, Any]] = []
    for way in _ways_to_train(options.ranks):
        backend, num_ranks, is_view = way
        if time.monotonic() > until:
            notes.append(f"{_training_name(way)}: the time was up")
            continue
        with tempfile.TemporaryDirectory() as folder:
            rounds = options.rounds if backend != "gloo" else 2
            store = str(Path(folder) / "store")
            request = TrainingRequest(backend, options.sequences, rounds, options.device, store, is_view, shape)
            try:
                rows.append(spawn(train_on_rank, ranks=num_ranks, args=(request,), timeout_s=_LONGEST_SECTION_S)[0])
            except (PhalanxError, RuntimeError, OSError) as error:
                notes.append(f"{_training_name(way)}: {type(error).__name__}: {error}")
                continue
        tell(training_lines(rows)[-1])
    return rows


def has_failed(result: dict[str, Any]) -> list[str]:
    """Return what makes a run worthless: wrong results, sections that broke off, no rows at all."""
    wrong = [
        f"{row['contender']}, {row['operation']}, {row['ranks']} ranks, {row['bytes']} B: wrong"
        for row in result["rows"]
        if not row["correct"]
    ]
    wrong += [
        f"{_training_name(_way(row))}: wrong gradients of {', '.join(row['wrong_gradients'])}"
        for row in result["training"]
        if not row["correct"]
    ]
    wrong += [] if result["rows"] else ["nothing was measured"]
    return wrong + [note for note in result["notes"] if "the time was up" not in note and "left out" not in note]


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return the goals that were not reached, those of what was not measured among them."""
    missed = [
        f"{row['operation']}, {row['ranks']} ranks, {row['bytes']} B: {row['goal']}"
        for row in result["rows"]
        if row["goal"].startswith("missed")
    ]
    missed += [
        f"{_training_name(_way(row))}: {row['goal']}" for row in result["training"] if row["goal"] not in ("", "ok")
    ]
    return missed + [f"{what}: not measured" for what in result["unmeasured"]]

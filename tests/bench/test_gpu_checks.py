"""What the script of all GPU checks says in the end."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_checks"
_PARTS = [{"part": "benchmark", "passed": True, "seconds": 140.0, "why": "the last line"}]


def _summarize(benchmark: dict[str, Any]) -> list[str]:
    spec = spec_from_loader("gpu_checks", SourceFileLoader("gpu_checks", str(_SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    lines: list[str] = module.summarize(_PARTS, benchmark)
    return lines


def test_missed_goals_are_in_the_summary() -> None:
    goals = ["broadcast, 8 ranks, 4 B: not measured", "all_reduce, 8 ranks, 4 B: missed: 20x of 25x"]
    lines = _summarize({"rows": [{}, {}], "training": [{}], "missed_goals": goals})
    assert lines == [
        "PASS  benchmark, 140.0 s: the last line",
        "measured: 2 rows of collectives, 1 of training; 2 goals were missed",
        *(f"goal missed: {goal}" for goal in goals),
    ]


def test_a_benchmark_without_a_result_is_told() -> None:
    assert _summarize({})[-1] == "the benchmark left no result: nothing was measured"

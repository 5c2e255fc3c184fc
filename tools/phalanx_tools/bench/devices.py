"""What virtual devices cost: per operation, for large ones, to set up and to build. Each face in a fresh process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_LONGEST_S = 600


def measure_devices(rounds: int) -> dict[str, Any]:
    """Measure both faces, and how long a build takes.

    Raises:
        subprocess.CalledProcessError: The program failed.
        BuildError: The library can't be built here.
    """
    return {
        "faces": [_measure_face(face, rounds) for face in ("virtual", "cuda")],
        "build_s": _measure_build(),
    }


def _measure_face(face: str, rounds: int) -> dict[str, Any]:
    runs = [_run(face, rounds if number == 0 else 1) for number in range(3)]
    # Operations from the first run; the set-up, which happens once in a process, from all three.
    return {**runs[0], "set_up_ms": statistics.median(run["set_up_ms"] for run in runs)}


def _run(face: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "phalanx_tools.bench.devices_program", face, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LONGEST_S)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _measure_build() -> float:
    from phalanx.virtual_gpus.building.compiling import compile_library, find_compiler
    from phalanx.virtual_gpus.building.progress import Progress
    from phalanx.virtual_gpus.building.recipe import make_recipe

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        progress = Progress()
        try:
            return compile_library(make_recipe(), find_compiler(), place / "library.so", place / "log", progress)
        finally:
            progress.end()


def describe(result: dict[str, Any]) -> list[str]:
    """Return the result as lines of text."""
    lines = [f"build: {result['build_s']:.1f} s"]
    for face in result["faces"]:
        lines.append(f"{face['face']}: set-up {face['set_up_ms']:.1f} ms")
        for name, row in face["small"].items():
            cpu, device, watched = row["cpu"], row["device"], face["small_with_races"][name]["device"]
            lines.append(
                f"  {name:20} cpu {cpu:6.2f} us, device {device:6.2f} us: {device - cpu:+.2f} us; "
                f"looking for races {watched - cpu:+.2f} us"
            )
        for name, row in face["large"].items():
            lines.append(
                f"  {name:20} cpu {row['cpu'] / 1e3:6.2f} ms, device {row['device'] / 1e3:6.2f} ms: "
                f"{row['device'] / row['cpu']:.2f}x"
            )
    return lines

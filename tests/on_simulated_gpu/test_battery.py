"""The battery of groups on a GPU that the simulated driver plays: the protocol of a GPU's ranks, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.settings import copy_environment
from tests.cuda_simulator.build import build_simulator, has_compiler, user_folder

_ROOT = Path(__file__).parents[2]
_LONGEST_S = 220
# Every way that data moves, and sums of few types: each type and operation needs a kernel, which g++ must compile here.
_PARTS = (
    ("all_gather", "all_to_all", "broadcast"),
    ("gather_and_scatter", "layouts", "messages"),
    ("overlaps", "split", "threads", "work"),
)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="there is no g++, which builds the simulated CUDA driver")
@pytest.mark.parametrize("parts", _PARTS, ids=lambda parts: parts[0])
def test_the_battery_passes_on_two_and_three_ranks_that_share_a_simulated_gpu(parts: tuple[str, ...]) -> None:
    library = str(build_simulator(user_folder()))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-r", "fE"]
    command += ["--battery-device", "virtual", "--battery-ranks", "2,3"]
    ended = subprocess.run(
        [*command, *(f"tests/contract/test_{part}.py" for part in parts)],
        cwd=_ROOT,
        env=copy_environment(PHALANX_CUDA_DRIVER=library, PHALANX_NVRTC=library),
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout

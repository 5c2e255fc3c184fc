"""How long a trivial test on ranks takes: torch's three harnesses against the ranks plugin, in turns.

Time is that of running the tests, without imports and collection, divided by their number.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx_tools.bench.cases import Case, Sample

_SUITES = "phalanx_tools.bench.harness_suites"
_ALONE = (
    "import torch, torch.distributed; from phalanx_tools.bench.proportional_memory import proportional_bytes; "
    "print(proportional_bytes('self'))"
)
_LONGEST_S = 900


@dataclass(frozen=True)
class _Harness:
    name: str
    command: tuple[str, ...]
    num_tests: int


HARNESSES = (
    # Takes seconds a test: fewer of them tell as much.
    _Harness("torch_multi_process_gloo", ("multi_process",), 5),
    _Harness("torch_continuous_gloo", ("continuous",), 100),
    _Harness("torch_multi_threaded", ("multi_threaded",), 100),
    _Harness("ranks_process", ("ranks", "process"), 100),
    _Harness("ranks_pool", ("ranks", "pool"), 100),
    _Harness("ranks_thread", ("ranks", "thread"), 100),
)


def measure_harnesses(ranks: Sequence[int], rounds: int, watch: Callable[[str], None]) -> list[Sample]:
    """Time every harness with every number of ranks.

    Args:
        ranks: Numbers of ranks.
        rounds: Turns of every harness.
        watch: Told what is measured now.

    Raises:
        subprocess.CalledProcessError: One of them failed.
    """
    samples = []
    for num_ranks in ranks:
        times: dict[str, list[float]] = {harness.name: [] for harness in HARNESSES}
        correct = dict.fromkeys(times, True)
        for _ in range(rounds):
            for harness in HARNESSES:
                watch(f"{harness.name}, {num_ranks} ranks, {harness.num_tests} tests")
                answer = _run(harness, num_ranks)
                times[harness.name].append(answer["seconds_per_test"])
                correct[harness.name] = correct[harness.name] and bool(answer["correct"])
        case = Case("test", num_ranks, 0)
        samples += [Sample(case, name, tuple(values), correct[name]) for name, values in times.items()]
    return samples


def measure_idle_memory(num_ranks: int) -> dict[str, int]:
    """Compare warm ranks that wait for a test with one process that has imported torch."""
    answer = _run(_Harness("ranks_pool", ("ranks", "pool"), 3), num_ranks)
    done = subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True, check=True, timeout=120)
    return {
        "ranks": num_ranks,
        "idle_ranks_bytes": answer["rank_bytes"],
        "with_pytest_bytes": answer["rank_bytes"] + answer["own_bytes"],
        "torch_process_bytes": int(done.stdout),
    }


def _run(harness: _Harness, num_ranks: int) -> dict[str, Any]:
    module, *rest = harness.command
    command = [sys.executable, "-m", f"{_SUITES}.{module}", str(num_ranks), str(harness.num_tests), *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LONGEST_S)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer

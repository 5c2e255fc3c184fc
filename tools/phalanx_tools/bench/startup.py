"""How long until N ranks have a working group: phalanx.spawn against torch.multiprocessing.spawn with Gloo.

Each is timed in a fresh process that has imported torch, from the call to the return of the results. One import of
torch, which the first spawn() of a process can't do without, is timed beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from phalanx_tools.bench.cases import Case, Sample

_PHALANX = """
import json, sys, time
import torch, phalanx
from phalanx_tools.bench.startup import phalanx_rank
ranks, start = int(sys.argv[1]), time.perf_counter()
correct = phalanx.spawn(phalanx_rank, ranks=ranks) == [float(ranks)] * ranks
cold, start = time.perf_counter() - start, time.perf_counter()
phalanx.spawn(phalanx_rank, ranks=ranks)
print(json.dumps({"phalanx": cold, "phalanx_warm": time.perf_counter() - start, "correct": correct}))
"""

_TORCH = """
import json, sys, time
import torch, torch.multiprocessing as mp
from phalanx_tools.bench.startup import torch_rank
if __name__ == "__main__":
    ranks, start = int(sys.argv[1]), time.perf_counter()
    mp.spawn(torch_rank, args=(ranks, sys.argv[2]), nprocs=ranks)
    print(json.dumps({"torch_spawn_gloo": time.perf_counter() - start, "correct": True}))
"""

_IMPORT = """
import json, time
start = time.perf_counter()
import torch
print(json.dumps({"import_torch": time.perf_counter() - start, "correct": True}))
"""


def phalanx_rank() -> float:
    """Join, add up ones, return the sum."""
    import torch

    from phalanx.groups.connect import connect

    ones = torch.ones(1)
    connect().all_reduce(ones)
    return float(ones)


def torch_rank(rank: int, ranks: int, store: str) -> None:
    """Do the same with Gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    if float(ones) != ranks:
        raise AssertionError(f"wrong sum {float(ones)}")
    dist.destroy_process_group()


def measure_startup(num_ranks: int, rounds: int) -> list[Sample]:
    """Time them in turns.

    Raises:
        subprocess.CalledProcessError: One of them failed.
    """
    times: dict[str, list[float]] = {"phalanx": [], "phalanx_warm": [], "torch_spawn_gloo": [], "import_torch": []}
    is_correct = True
    for _ in range(rounds):
        for program in (_PHALANX, _TORCH, _IMPORT):
            answer = _run(program, num_ranks)
            is_correct = is_correct and answer.pop("correct") == 1
            for name, seconds in answer.items():
                times[name].append(seconds)
    case = Case("spawn", num_ranks, 4)
    return [Sample(case, name, tuple(values), is_correct) for name, values in times.items()]


def _run(program: str, num_ranks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(program)
        command = [sys.executable, str(script), str(num_ranks), str(Path(folder) / "store")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer

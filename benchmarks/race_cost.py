"""What looking for races costs: operations of a virtual device with the detector off and on, beside the CPU's own.

    python benchmarks/race_cost.py [--json]

Each number is the median of 7 rounds, in microseconds per call, with the least and the largest of them. Off and on take
turns, so that both have the same machine. What is computed is compared with the CPU's before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import phalanx
from phalanx.devices import races

ROUNDS = 7
Case = tuple[str, int, Callable[[str], Callable[[], object]]]


def _add(device: str) -> Callable[[], object]:
    x = torch.ones(8, device=device)
    return lambda: x + 1


def _add_in_place(device: str) -> Callable[[], object]:
    x = torch.ones(8, device=device)
    return lambda: x.add_(1)


def _product(device: str) -> Callable[[], object]:
    x = torch.ones(512, 512, device=device)
    return lambda: x @ x


def _view(device: str) -> Callable[[], object]:
    x = torch.ones(8, device=device)
    return lambda: x.view(2, 4)


def _columns(device: str) -> Callable[[], object]:
    x = torch.ones(64, 64, device=device)
    return lambda: [x[:, at].add_(1) for at in range(64)]


def _cache(device: str) -> Callable[[], object]:
    cache, new = torch.zeros(4, 8, 512, 16, device=device), torch.ones(4, 8, 16, device=device)
    return lambda: [cache[:, :, at].copy_(new) for at in range(512)]


def _training_step(device: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(32, 64, device=device)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


CASES: tuple[Case, ...] = (
    ("add, 8 floats", 2000, _add),
    ("add_, 8 floats", 2000, _add_in_place),
    ("view", 2000, _view),
    ("matmul 512 x 512", 20, _product),
    ("64 columns, add_", 50, _columns),
    ("512 slices with gaps, copy_", 5, _cache),
    ("training step, 4 layers, AdamW", 30, _training_step),
)


def _measured_us(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def _check(make: Callable[[str], Callable[[], object]]) -> None:
    """Make sure that both compute the same."""
    expected, got = make("cpu")(), make("cuda")()
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        torch.testing.assert_close(got.cpu(), expected)


def _measure(case: Case) -> dict[str, object]:
    name, count, make = case
    _check(make)
    on_cpu, on_device = make("cpu"), make("cuda")
    rounds: dict[str, list[float]] = {"cpu": [], "off": [], "on": []}
    for number in range(ROUNDS + 1):
        row = {"cpu": _measured_us(on_cpu, count), "off": _measured_us(on_device, count)}
        with races.races_mode("raise"):
            row["on"] = _measured_us(on_device, count)
        if number > 0:  # the first warms up
            for where, value in row.items():
                rounds[where].append(value)
    return {"case": name, **{where: (statistics.median(v), min(v), max(v)) for where, v in rounds.items()}}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    phalanx.virtual_devices(1, face="cuda")
    rows = [_measure(case) for case in CASES]
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "python": platform.python_version(), "cases": rows}, indent=1))
        return
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print("microseconds per call: median (least-most)")
    for row in rows:
        cells = [f"{where} {_cell(row[where])}" for where in ("cpu", "off", "on")]
        print(f"{row['case']!s:32}" + "  ".join(cells))


def _cell(numbers: object) -> str:
    assert isinstance(numbers, tuple)
    median, least, most = numbers
    return f"{median:9.2f} ({least:.2f}-{most:.2f})"


if __name__ == "__main__":
    _main()

"""Torch on the CPU and on a virtual device, in turns: what `./dev bench devices` runs in a process of its own.

Prints one line of JSON. Times are in microseconds unless a name says otherwise.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[], Any]
_SMALL_S = 0.02  # how long one turn of a small operation takes


def small_operations(device: str) -> dict[str, Call]:
    """Return calls whose arithmetic takes no time."""
    a, b, matrix = torch.randn(8, device=device), torch.randn(8, device=device), torch.randn(8, 8, device=device)
    leaf = torch.randn(8, device=device, requires_grad=True)
    return {
        "add": lambda: a + b,
        "add_": lambda: a.add_(b),
        "view": lambda: a.view(2, 4),
        "mm 8x8": lambda: matrix @ matrix,
        "empty": lambda: torch.empty(8, device=device),
        "randn": lambda: torch.randn(8, device=device),
        "softmax": lambda: torch.softmax(a, 0),
        "cat": lambda: torch.cat([a, b]),
        "item": a[0].item,
        "mul, with gradient": lambda: leaf * leaf,
    }


def large_operations(device: str) -> dict[str, Call]:
    """Return calls that are arithmetic and memory traffic."""
    big, matrix = torch.randn(4 << 20, device=device), torch.randn(768, 768, device=device)
    image, convolution = torch.randn(8, 16, 64, 64, device=device), nn.Conv2d(16, 16, 3).to(device)
    return {
        "add, 16 MiB": lambda: big + big,
        "add_, 16 MiB": lambda: big.add_(1),
        "mm 768x768": lambda: matrix @ matrix,
        "conv2d": lambda: convolution(image),
        "MLP step": _training_step(device),
    }


def _training_step(device: str) -> Call:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs, targets = torch.randn(64, 256, device=device), torch.randint(0, 10, (64,), device=device)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step


def time_in_turns(calls: dict[str, Call], rounds: int, turn_s: float) -> dict[str, list[float]]:
    """Time calls that do the same in different places, one after the other, again and again."""
    counts = {name: max(1, int(turn_s / _once(call))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    return times


def _once(call: Call) -> float:
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-7)


def measure(face: str, rounds: int) -> dict[str, Any]:
    """Set devices up and measure."""
    from phalanx.virtual_gpus.building import built_library
    from phalanx.virtual_gpus.set_up import virtual_devices

    built_library()
    start = time.perf_counter()
    device = str(virtual_devices(2, face=face)[1])  # type: ignore[arg-type]
    set_up_ms = (time.perf_counter() - start) * 1e3
    return {
        "face": face,
        "set_up_ms": set_up_ms,
        "small": _compare(small_operations, device, rounds, _SMALL_S),
        "large": _compare(large_operations, device, rounds, 0.0),
        "small_with_races": _with_races(device, rounds),
    }


def _compare(make: Callable[[str], dict[str, Call]], device: str, rounds: int, turn_s: float) -> dict[str, Any]:
    on_cpu, on_device = make("cpu"), make(device)
    rows = {}
    for name in on_cpu:
        times = time_in_turns({"cpu": on_cpu[name], "device": on_device[name]}, rounds, turn_s)
        rows[name] = {place: statistics.median(values) for place, values in times.items()}
    return rows


def _with_races(device: str, rounds: int) -> dict[str, Any]:
    from phalanx.devices.races import races_mode

    with races_mode("raise"):
        return _compare(small_operations, device, rounds, _SMALL_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))

"""The program of ranks that share a GPU: every collective by every contender, in turns, checked before and after.

All contenders run on the same ranks: they share processes, GPU contexts and memory alike.
"""

from __future__ import annotations

import secrets
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.groups.connect import connect
from phalanx_tools.bench.cases import Case, Sample
from phalanx_tools.bench.gpu.calls import Calls, Preparation, Prepared, phalanx_calls, staged_messages, torch_calls
from phalanx_tools.bench.gpu.report import line_of
from phalanx_tools.bench.gpu.turns import RanksDisagreeError, Turns

_TURN_S = 0.02
_SLOW_S = 0.1  # what takes longer has fewer turns
_SLOW_TURNS = 2
_LONGEST_CALL_S = 60
_TENSORS_OF_A_CASE = 6  # two of each contender


@dataclass(frozen=True)
class Request:
    """What ranks are asked to measure.

    Attributes:
        cases: All of the same number of ranks.
        contenders: Who takes part.
        rounds: Turns of each.
        device: "cuda", or "cpu" to try the program itself.
        store: A file where torch's groups meet.
        until: When to begin no other case, by time.monotonic().
        copy_bytes_per_s: The bandwidth of a plain copy.
    """

    cases: tuple[Case, ...]
    contenders: tuple[str, ...]
    rounds: int
    device: str
    store: str
    until: float
    copy_bytes_per_s: float


@dataclass(frozen=True)
class Measurement:
    """What came of it, as rank 0 saw it.

    Attributes:
        samples: The times.
        notes: What was left out, and why.
    """

    samples: tuple[Sample, ...]
    notes: tuple[str, ...]


def measure_on_rank(request: Request) -> Measurement:
    """Be one rank: measure all cases. Rank 0 prints each as it goes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, about groups that know their device only later
    device = torch.device(request.device, 0) if request.device == "cuda" else torch.device("cpu")
    return _Rank(request, device).run()


class _Rank:
    def __init__(self, request: Request, device: torch.device) -> None:
        group, control = connect(), connect(name="control")
        self._request = request
        self._device = device
        self._rank = group.rank
        self._turns = Turns(control, device)
        self._preparation = Preparation(group.rank, device)
        self._control = control
        limit = timedelta(seconds=_LONGEST_CALL_S)
        dist.init_process_group(
            "gloo", init_method=f"file://{request.store}", rank=group.rank, world_size=group.size, timeout=limit
        )
        through_torch = dist.new_group(backend="phalanx", timeout=limit)
        self._calls: dict[str, Calls] = {
            "phalanx": phalanx_calls(group),
            "phalanx_torch": torch_calls(through_torch),
            "gloo": staged_messages(torch_calls(dist.group.WORLD)),
        }
        self._notes: list[str] = []

    def run(self) -> Measurement:
        samples: list[Sample] = []
        for case in self._request.cases:
            reason = self._control.broadcast_object(self._reason_against(case) if self._rank == 0 else None)
            if reason:
                self._note(case, "left out", reason)
                continue
            samples += self._measure(case)
        dist.destroy_process_group()
        return Measurement(tuple(samples), tuple(self._notes))

    def _reason_against(self, case: Case) -> str:
        if time.monotonic() > self._request.until:
            return "the time was up"
        if self._device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self._device)[0]
            if case.ranks * case.bytes * _TENSORS_OF_A_CASE > free_bytes:
                return f"{free_bytes / 2**30:.0f} GiB of free GPU memory are too little"
        return ""

    def _measure(self, case: Case) -> list[Sample]:
        prepared: dict[str, Prepared] = {}
        iterations: dict[str, int] = {}
        correct: dict[str, bool] = {}
        for name in self._request.contenders:
            try:
                prepared[name] = self._prepare(case, name)
                correct[name] = all(self._turns.agree(prepared[name].check))
                iterations[name] = self._turns.iterations_for(prepared[name].call, _TURN_S)
            except RanksDisagreeError as error:
                prepared.pop(name, None)
                self._note(case, name, str(error))
        times: dict[str, list[float]] = {name: [] for name in prepared}
        for turn in range(self._request.rounds):
            names = list(prepared)
            shift = turn % max(1, len(names))
            for name in [*names[shift:], *names[:shift]]:
                if min(times[name], default=0.0) > _SLOW_S and len(times[name]) >= _SLOW_TURNS:
                    continue
                try:
                    self._turns.agree(prepared[name].refill)
                    times[name].append(self._turns.time(prepared[name].call, iterations[name]))
                    correct[name] &= all(self._turns.agree(prepared[name].check_turn))
                except RanksDisagreeError as error:
                    del prepared[name]
                    self._note(case, name, str(error))
        scale = 0.5 if case.operation == "send_recv" else 1.0  # half a round trip
        samples = [
            Sample(case, name, tuple(value * scale for value in times[name]), correct[name]) for name in prepared
        ]
        if self._rank == 0:
            print(line_of(samples, self._request.copy_bytes_per_s), flush=True)
        return samples

    def _prepare(self, case: Case, name: str) -> Prepared:
        seed: int = self._control.broadcast_object(secrets.randbits(62) if self._rank == 0 else None)
        made: list[Prepared] = []

        def prepare() -> None:
            made.append(self._preparation.prepare(case, self._calls[name], seed))

        self._turns.agree(prepare)
        return made[0]

    def _note(self, case: Case, what: str, reason: str) -> None:
        note = f"{case.operation}, {case.ranks} ranks, {case.bytes} B, {what}: {reason}"
        self._notes.append(note)
        if self._rank == 0:
            print(note, flush=True)


def copy_bandwidth(device_type: str, rounds: int) -> dict[str, Any]:
    """Measure how fast one rank copies a large tensor on the device: bytes read and written, per second."""
    device = torch.device(device_type, 0) if device_type == "cuda" else torch.device("cpu")
    size_bytes = min(1 << 30, torch.cuda.mem_get_info(device)[0] // 8) if device_type == "cuda" else 32 << 20
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    turns = Turns(connect(), device)
    iterations = turns.iterations_for(lambda: target.copy_(source), _TURN_S)
    times = [turns.time(lambda: target.copy_(source), iterations) for _ in range(rounds)]
    if not bool((target[-7:] == 1).all()):
        raise AssertionError("a plain copy is wrong")
    speeds = sorted(2 * size_bytes / seconds for seconds in times)
    return {"tensor_bytes": size_bytes, "bytes_per_s": speeds[len(speeds) // 2], "all_bytes_per_s": speeds}

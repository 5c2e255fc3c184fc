"""Events in torch's profiler, and none when it does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from phalanx.torch_backend import versions
from phalanx.torch_backend.untyped import dist
from tests.checks import equal
from tests.torch_backend.torch_ranks import run_torch_ranks


def test_every_call_is_an_event_with_shapes(tmp_path: Path) -> None:
    def program() -> dict[str, Any]:
        peer = 1 - dist.get_rank()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            dist.all_reduce(torch.ones(3, 4))
            dist.broadcast(torch.ones(2), 0)
            dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(5))
            dist.barrier()
            if dist.get_rank() == 0:
                dist.send(torch.ones(6), peer)
            else:
                dist.recv(torch.ones(6), peer)
        trace = f"{tmp_path}/{dist.get_rank()}.json"
        profiler.export_chrome_trace(trace)
        events = [event for event in profiler.events() if event.name.startswith("phalanx:")]
        return {event.name: (event.count, event.is_async, event.input_shapes) for event in events}

    is_async = versions.EVENTS_MAY_END_ELSEWHERE
    for rank, events in enumerate(run_torch_ranks(tmp_path, 2, program)):
        message = "phalanx:send" if rank == 0 else "phalanx:recv"
        wanted = {
            "phalanx:all_reduce": (1, is_async, [[3, 4]]),
            "phalanx:broadcast": (1, is_async, [[2]]),
            "phalanx:all_gather": (1, is_async, [[5]]),
            "phalanx:barrier": (1, is_async, []),
            message: (1, is_async, [[6]]),
        }
        assert events == wanted
        trace = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {event.get("name") for event in trace["traceEvents"]} >= set(wanted)


def test_nothing_is_recorded_without_a_profiler(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        equal((world._completer._thread, world._event_completer._thread), (None, None))

    run_torch_ranks(tmp_path, 2, program)

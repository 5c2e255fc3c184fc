"""Events in torch's profiler, and none when it does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from phalanx.torch_backend import versions
from phalanx.torch_backend.untyped import dist

pytestmark = pytest.mark.ranks(2)


def test_every_call_is_an_event_with_shapes(process_group: Any, rank: int, rank_tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.broadcast(torch.ones(2), 0)
        dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(5))
        dist.barrier()
        if rank == 0:
            dist.send(torch.ones(6), 1)
        else:
            dist.recv(torch.ones(6), 0)
    is_async = versions.EVENTS_MAY_END_ELSEWHERE
    wanted = {
        "phalanx:all_reduce": (1, is_async, [[3, 4]]),
        "phalanx:broadcast": (1, is_async, [[2]]),
        "phalanx:all_gather": (1, is_async, [[5]]),
        "phalanx:barrier": (1, is_async, []),
        "phalanx:send" if rank == 0 else "phalanx:recv": (1, is_async, [[6]]),
    }
    events = [event for event in profiler.events() if event.name.startswith("phalanx:")]
    assert {event.name: (event.count, event.is_async, event.input_shapes) for event in events} == wanted
    trace = rank_tmp_path / "trace.json"
    profiler.export_chrome_trace(str(trace))
    assert {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]} >= set(wanted)


def test_nothing_is_recorded_without_a_profiler(process_group: Any) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert (process_group._completer._thread, process_group._event_completer._thread) == (None, None)

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phalanx.timeline import write_timeline
from tests.timeline.made_up_runs import write_training
from tests.timeline.raw_files import RawRank

Event = dict[str, Any]


def _trace(folder: Path) -> list[Event]:
    trace = json.loads(write_timeline(folder).trace.read_text())
    assert trace["displayTimeUnit"] == "ns"
    events: list[Event] = trace["traceEvents"]
    return events


def _training(folder: Path) -> list[Event]:
    write_training(folder)
    return _trace(folder)


def test_a_rank_is_a_process_and_a_group_a_thread(tmp_path: Path) -> None:
    for rank in (0, 3):
        raw = RawRank(rank).group(0, "world", rank=rank // 3).group(1, "world", rank=rank // 3)
        raw.call("barrier", 1, 10, 20).call("barrier", 1, 30, 40, group=1).write(tmp_path)
    names = [(event["name"], event["pid"], event["args"]) for event in _trace(tmp_path) if event["ph"] == "M"]
    assert ("process_name", 3, {"name": "rank 3"}) in names
    assert ("process_sort_index", 3, {"sort_index": 3}) in names
    threads = [(pid, args["name"]) for name, pid, args in names if name == "thread_name"]
    assert threads == [(0, "world"), (0, "world #2"), (3, "world"), (3, "world #2")]


def test_a_call_carries_what_is_known_about_it(tmp_path: Path) -> None:
    for rank, start_ns in ((0, 1_000), (1, 2_500)):
        raw = RawRank(rank).group(0, "data")
        raw.call("reduce", 4, start_ns, 4_000, shape=(2, 3), op="max", root=1, size_bytes=24, place="t.py:9")
        raw.write(tmp_path)
    first, _ = (event for event in _trace(tmp_path) if event["ph"] == "X")
    assert (first["name"], first["cat"], first["pid"], first["ts"], first["dur"]) == ("reduce", "collective", 0, 0, 3)
    assert first["args"] == {
        "group": "data", "number": 4, "dtype": "float32", "shape": "(2, 3)", "op": "max", "root": 1, "bytes": 24,
        "waited_us": 1.5, "waited_for": 1, "line": "t.py:9",
    }  # fmt: skip


def test_every_event_has_the_fields_of_its_phase(tmp_path: Path) -> None:
    everywhere = {"ph", "name", "pid", "tid"}
    needed = {
        "M": everywhere | {"args"},
        "X": everywhere | {"cat", "ts", "dur", "args"},
        "s": everywhere | {"cat", "ts", "id"},
        "f": everywhere | {"cat", "ts", "id", "bp"},
    }
    events = _training(tmp_path)
    assert {event["ph"] for event in events} == set(needed)
    for event in events:
        assert event.keys() == needed[event["ph"]]
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0


def test_calls_of_one_thread_do_not_overlap(tmp_path: Path) -> None:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in _training(tmp_path):
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    assert len(threads) > 8  # async calls made further rows
    for events in threads.values():
        events.sort(key=lambda event: event["ts"])
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-4


def test_messages_have_an_arrow_from_inside_the_send_to_inside_the_receive(tmp_path: Path) -> None:
    events = _training(tmp_path)
    calls = [event for event in events if event["ph"] == "X"]
    ends = {kind: {event["id"]: event for event in events if event["ph"] == kind} for kind in "sf"}
    assert len(ends["s"]) == sum(call["name"] == "send" for call in calls)
    assert ends["s"].keys() == ends["f"].keys()
    for kind, name in (("s", "send"), ("f", "recv")):
        for end in ends[kind].values():
            around = [call["name"] for call in calls if (call["pid"], call["tid"]) == (end["pid"], end["tid"])
                      and call["ts"] <= end["ts"] < call["ts"] + call["dur"]]  # fmt: skip
            assert around == [name]
    assert all(ends["s"][number]["ts"] <= ends["f"][number]["ts"] for number in ends["s"])
    assert {end["bp"] for end in ends["f"].values()} == {"e"}


@pytest.mark.parametrize("name", ['"quoted"', "back\\slash", "</script>", "\N{SNOWMAN}"])
def test_any_group_name_survives(tmp_path: Path, name: str) -> None:
    RawRank(0).group(0, name, num_ranks=1).call("barrier", 1, 1, 2).write(tmp_path)
    (call,) = (event for event in _trace(tmp_path) if event["ph"] == "X")
    assert call["args"]["group"] == name

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.timeline.spans import read_spans
from tests.run_ranks import every_kind, run_ranks


@every_kind
def test_a_block_records_all_operations_of_every_rank(kind: Any, tmp_path: Path) -> None:
    def body(folder: str) -> bool:
        group = phalanx.connect()
        group.barrier()  # before: not in it
        with phalanx.trace(folder) as trace:
            pair = group.split([0, 1], name="pair")
            group.all_reduce(torch.ones(5))
            if group.rank == 0:
                group.send(torch.ones(7), 2, tag=4)
            if group.rank == 2:
                group.recv(torch.ones(7), None, tag=4)
            if pair is not None:
                pair.broadcast(torch.ones(1 << 20))
            group.all_gather_single(torch.ones(6), torch.ones(2), async_op=True).wait()
            group.barrier()  # nobody leaves before all have come
        group.barrier()  # after: not in it either
        return trace.written is not None

    drawn = run_ranks(kind, 3, body, str(tmp_path))
    assert sum(drawn) >= 1  # the last to leave, and whoever was alone by chance
    timeline = read_spans(tmp_path)
    found = sorted((span.rank, span.call.operation) for span in timeline.spans)
    assert found == sorted(
        [(rank, operation) for rank in range(3) for operation in ("all_reduce", "all_gather", "barrier")]
        + [(0, "send"), (2, "recv"), (0, "broadcast"), (1, "broadcast")]
    )
    assert (tmp_path / "timeline.html").stat().st_size > 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == {call for _, call in found}
    assert any(event["ph"] == "s" for event in events)
    assert any(event["ph"] == "f" for event in events)


def test_lines_that_were_known_before_are_in_the_trace_too(tmp_path: Path) -> None:
    with phalanx.connect() as group:
        for folder in (None, tmp_path):
            if folder is None:
                group.all_reduce(torch.ones(1))
            else:
                with phalanx.trace(folder):
                    for _ in range(2):
                        group.all_reduce(torch.ones(1))
        group.close()
    assert all("test_tracing.py:" in span.place for span in read_spans(tmp_path).spans)


def test_a_second_recording_replaces_that_of_processes_that_are_gone(tmp_path: Path) -> None:
    def body(folder: str) -> None:
        group = phalanx.connect()
        with phalanx.trace(folder):
            group.barrier()

    for _ in range(2):
        run_ranks("process", 2, body, str(tmp_path))
    assert len(list(tmp_path.glob("*.raw"))) == 2


def test_a_rank_can_record_only_once_at_a_time(tmp_path: Path) -> None:
    with phalanx.trace(tmp_path), pytest.raises(phalanx.UsageError, match="already recording"), phalanx.trace(tmp_path):
        pass


def test_a_folder_that_can_t_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(phalanx.PhalanxError, match="can't be written to"), phalanx.trace(tmp_path / "file"):
        pass


def test_a_full_disk_ends_the_trace_and_not_the_program(tmp_path: Path) -> None:
    def body(folder: str) -> float:
        group = phalanx.connect()
        tensor = torch.ones(1)
        # A limit on the size of files is as good as a full disk; Python ignores the signal that comes with it.
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 19, 3 << 19))
        with phalanx.trace(folder):
            for _ in range(10_000):
                group.all_reduce(tensor, phalanx.ReduceOp.MAX)
        return tensor.item()

    with pytest.raises(phalanx.PhalanxError, match="can't be written"):  # the page has no room either
        run_ranks("process", 1, body, str(tmp_path))
    timeline = read_spans(tmp_path)
    assert len(timeline.spans) > 8000
    assert timeline.processes[0].is_truncated


@pytest.mark.slow
def test_a_child_that_a_rank_forks_does_not_end_its_trace(tmp_path: Path) -> None:
    def body(folder: str) -> None:
        group = phalanx.connect()
        with phalanx.trace(folder):
            group.all_reduce(torch.ones(3))
            pid = os.fork()
            if pid == 0:
                raise SystemExit(0)  # through the block's end, and what runs at exit
            os.waitpid(pid, 0)
            for _ in range(100):
                group.barrier()

    run_ranks("process", 2, body, str(tmp_path))
    assert len(read_spans(tmp_path).spans) == 2 * 101


@pytest.mark.slow
def test_a_killed_rank_leaves_what_it_did(tmp_path: Path) -> None:
    def body(folder: str) -> None:
        group = phalanx.connect()
        with phalanx.trace(folder):
            group.all_reduce(torch.ones(3))
            if group.rank == 1:
                os.kill(os.getpid(), 9)
            group.barrier()

    with pytest.raises(phalanx.RankFailedError):
        run_ranks("process", 2, body, str(tmp_path))
    spans = read_spans(tmp_path).spans
    assert (1, "all_reduce") in [(span.rank, span.call.operation) for span in spans]

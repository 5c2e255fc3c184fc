"""Dumps that torch's own analyser reads: it must come to the same conclusions, in its own words."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from phalanx.diagnosis.torch_record import PREFIX, build_dumps, write_torch_records
from phalanx.diagnosis.views import JobView
from phalanx.engine.facts import EntryFacts, RankRecords
from phalanx.errors import PhalanxError
from tests.diagnosis.jobs import LIMIT_S, started
from tests.diagnosis.observations import NOTHING, NOW_NS, entry, group, observation, row, stacks, waiting


def _analyse(folder: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", PREFIX]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def _every_operation(gate: Path, late: int, *, differs: bool) -> None:
    import torch

    import phalanx

    world = phalanx.connect(timeout_s=50)
    tensor, size, rank = torch.ones(2, 3), world.size, world.rank
    pair = world.split([0, 2]) if rank in (0, 2) else None
    world.all_reduce(tensor)
    world.all_gather_single(torch.empty(2 * size, 3), tensor)
    world.reduce_scatter_single(tensor, torch.ones(2 * size, 3))
    world.broadcast(tensor, root=1)
    world.reduce(tensor, root=1)
    world.gather([torch.empty(2, 3) for _ in range(size)] if rank == 0 else None, tensor, root=0)
    world.scatter(tensor, [torch.ones(2, 3) for _ in range(size)] if rank == 0 else None, root=0)
    world.all_to_all_single(torch.empty(size, 3), torch.ones(size, 3))
    if pair is not None:
        pair.barrier()
    if rank == 0:
        world.send(tensor, 2, tag=4)
        world.send(tensor, 2)
    if rank == 2:
        world.recv(tensor)
        world.recv(tensor, source=0, tag=4)
    world.all_reduce(tensor.reshape(3, 2) if rank == 1 else tensor)
    if rank == late:
        while not gate.exists():
            time.sleep(0.01)
        return
    with contextlib.suppress(phalanx.PhalanxError):
        world.all_reduce(torch.ones(5) if differs and rank == 2 else tensor)
    while not gate.exists():
        time.sleep(0.01)


def _misses_a_rank(gate: Path) -> None:
    _every_operation(gate, 1, differs=False)


def _disagrees(gate: Path) -> None:
    _every_operation(gate, -1, differs=True)


def _misses_a_sender(gate: Path) -> None:
    import torch

    import phalanx

    world = phalanx.connect(timeout_s=50)
    if world.rank == 2:
        with contextlib.suppress(phalanx.PhalanxError):
            world.recv(torch.ones(2), source=1, tag=3)
    while not gate.exists():
        time.sleep(0.01)


_knows_barriers = pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 13), reason="older analysers of torch refuse a barrier"
)


@pytest.mark.slow
@_knows_barriers
def test_torch_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    with started(3, _misses_a_rank, tmp_path) as job:
        job.wait_for("rank 1 holds up ranks 0, 2, in all_reduce #10")
        write_torch_records(job.look(), tmp_path / "dumps")
        told = _analyse(tmp_path / "dumps")
        job.go_on()
    assert told.count("Not all ranks joining collective") == 1, told
    assert "Not all ranks joining collective, sequence number: 10\n" in told
    assert "group info: 0:world\n" in told
    assert "collective: nccl:all_reduce\n" in told
    assert "missing ranks: {1}\n" in told
    assert "collective state: started\n" in told
    assert re.search(r"_every_operation at .*/test_torch_record.py:\d+\n", told)
    assert "Culprit" not in told


@pytest.mark.slow
@_knows_barriers
def test_torch_names_a_rank_that_called_something_else(tmp_path: Path) -> None:
    with started(3, _disagrees, tmp_path) as job:
        job.wait_for('group "world" is broken in operation #10: rank ', " called something else than the others")
        write_torch_records(job.look(), tmp_path / "dumps")
        told = _analyse(tmp_path / "dumps")
        job.go_on()
    assert "Collective sequence number: 10 has errors" in told, told
    assert told.count("has errors") == 1, told
    culprits = set(re.findall(r"Culprit rank (\d); Error type: SIZE_OR_SYNTAX_MISMATCH", told))
    # It takes the rank whose file it reads first for one of the good ones.
    assert culprits in ({"2"}, {"0", "1"})
    assert "'[[5]]'" in told


@pytest.mark.slow
def test_torch_names_the_sender_that_did_not_come(tmp_path: Path) -> None:
    with started(3, _misses_a_sender, tmp_path) as job:
        job.wait_for("rank 1 holds up rank 2, in recv from rank 1 tag 3")
        write_torch_records(job.look(), tmp_path / "dumps")
        told = _analyse(tmp_path / "dumps")
    assert "group info: 0:1->2:3:world: messages from rank 1 to rank 2, tag 3\n" in told, told
    assert "missing ranks: {1}\n" in told
    assert "collective: nccl:recv 1<-0\n" in told


def test_entries_have_what_torch_records() -> None:
    done = entry(6, "all_gather", ago_s=6, end_ns=NOW_NS - 5_500_000_000, shape=(2, 2))
    records = [RankRecords([done, entry(7)], []), RankRecords([done], [])]
    seen = observation(group(waiting(0, 1), row(1), records=records))
    seen.processes[0].stacks = stacks(("/lib/python3.11/x.py", 1, "inner"), ("/home/me/train.py", 61, "step"))
    dump = build_dumps(seen)[0]
    assert dump["version"] == "2.10"
    assert dump["pg_config"] == {"0": {"name": "0", "desc": "world", "ranks": "[0, 1]"}}
    assert dump["pg_status"]["0"] == {
        "last_enqueued_collective": 7,
        "last_started_collective": 7,
        "last_completed_collective": 6,
    }
    first, last = dump["entries"]
    assert (first["state"], first["retired"], first["duration_ms"]) == ("completed", True, 500.0)
    assert (first["input_sizes"], first["output_sizes"]) == ([[2, 2]], [[2, 2, 2]])
    assert first["frames"] == [{"name": "called", "filename": "/home/me/train.py", "line": 61}]
    assert (last["state"], last["retired"], last["time_discovered_completed_ns"]) == ("started", False, None)
    assert (last["collective_seq_id"], last["record_id"], last["profiling_name"]) == (7, 1, "nccl:all_reduce")
    assert last["input_dtypes"] == ["Float"]
    assert last["time_created_ns"] == 995_000_000_000, "on the clock that people use"
    assert last["frames"] == [{"name": "step", "filename": "/home/me/train.py", "line": 61}]


def test_only_what_all_ranks_remember_is_compared() -> None:
    long = [entry(seq) for seq in range(5, 9)]
    records = [RankRecords(long, []), RankRecords(long[2:], [])]
    dumps = build_dumps(observation(group(row(0), row(1), records=records)))
    for rank in range(2):
        assert [each["collective_seq_id"] for each in dumps[rank]["entries"]] == [7, 8]
        assert dumps[rank]["entries"][0]["record_id"] == 0


def test_messages_of_a_pair_and_tag_are_numbered_alike_on_both_sides() -> None:
    def message(seq: int, operation: str, peer: int, tag: int, **changes: Any) -> EntryFacts:
        return entry(seq, operation, **{"peer": peer, "root": peer, "count": tag, "end_ns": NOW_NS, **changes})

    sends = [message(1, "send", 1, 5), message(2, "send", 1, 0), message(3, "send", 1, 5), message(4, "send", 0, 0)]
    receives = [message(1, "recv", 0, 0), message(2, "recv", 0, 5), message(3, "recv", 0, 5, root=-1)]
    records = [RankRecords([], sends), RankRecords([], receives)]
    dumps = build_dumps(observation(group(row(0), row(1), records=records)))
    numbers = [
        sorted((each["process_group"][0], each["collective_seq_id"]) for each in dumps[rank]["entries"])
        for rank in range(2)
    ]
    assert numbers[0] == numbers[1] == [("0:0->1:0", 1), ("0:0->1:5", 1), ("0:0->1:5", 2)]
    records[0] = RankRecords([], [message(9, "send", 1, 5), message(10, "send", 1, 5, end_ns=0)])
    dumps = build_dumps(observation(group(row(0), row(1), records=records)))
    assert len(dumps[0]["entries"]) == 1, "of those whose number is not known only what is under way is told"


def test_every_rank_of_the_job_has_a_dump_also_those_who_have_not_joined() -> None:
    world = group(row(0), row(1), row(2, pid=0, state="absent", entry=None))
    dumps = build_dumps(observation(world, job=JobView(pids=[800, 801, 802])))
    assert sorted(dumps) == [0, 1, 2], "the launcher knows its process"
    pair = group(row(0), row(1, pid=0, state="absent", entry=None), name="pair")
    assert sorted(build_dumps(observation(group(row(0), row(1), row(2)), pair))) == [0, 1, 2, 3]
    dumps = build_dumps(observation(world))
    assert sorted(dumps) == [0, 1, 2]
    assert dumps[2]["pg_config"]["0"]["ranks"] == "[0, 1, 2]"


def test_dumps_of_a_larger_job_are_taken_away(tmp_path: Path) -> None:
    write_torch_records(observation(group(*(row(rank) for rank in range(3)))), tmp_path)
    other = tmp_path / f"{PREFIX}notes"
    other.touch()
    paths = write_torch_records(observation(group(row(0), row(1))), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*paths, other])
    assert pickle.loads(paths[0].read_bytes())["entries"] == []


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PhalanxError, match=r"the dumps for torch can't be written to .*/file/dumps: Not a directory"):
        write_torch_records(observation(group(row(0))), tmp_path / "file" / "dumps")


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    write_torch_records(observation(group(row(0), row(1))), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    many = RankRecords([entry(seq) for seq in range(1, 100)], [])
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_torch_records(observation(group(row(0), row(1), records=[NOTHING, many])), tmp_path)
        except PhalanxError as error:
            os._exit(7 if "can't be written" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

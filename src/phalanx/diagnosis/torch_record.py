"""Write an observation as dumps of torch's flight recorder, which torch's own analyser can read.

`python -m torch.distributed.flight_recorder.fr_trace DIR` compares what the ranks of a group did under the same number.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.record_folder import write_whole
from phalanx.diagnosis.stacks import ThreadStack, is_launchers, parse_stacks, stack_of
from phalanx.diagnosis.torch_parts import Part, find_parts, number_members
from phalanx.diagnosis.waits import key_of, world_of
from phalanx.engine.facts import EntryFacts
from phalanx.errors import PhalanxError

PREFIX = "phalanx_trace_rank_"
_VERSION = "2.10"
_DTYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex32": "ComplexHalf",
    "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu",
    "float4_e2m1fn_x2": "Float4_e2m1fn_x2",
}


def write_torch_records(seen: Observation, folder: Path) -> list[Path]:
    """Write a dump for every rank, and remove older dumps in the folder.

    Raises:
        PhalanxError: They can't be written.
    """
    dumps = build_dumps(seen)
    files = {folder / f"{PREFIX}{rank}": pickle.dumps(dump, protocol=2) for rank, dump in sorted(dumps.items())}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(files)
        for old in folder.glob(f"{PREFIX}*"):  # of a larger job: the analyser would count them as members
            if old not in files and old.name.removeprefix(PREFIX).isdigit():
                old.unlink()
    except OSError as error:
        raise PhalanxError(f"the dumps for torch can't be written to {folder}: {error.strerror or error}") from None
    return list(files)


def build_dumps(seen: Observation) -> dict[int, dict[str, Any]]:
    """Return what torch would have recorded, by rank of the world."""
    members = number_members(seen)
    ranks = sorted(
        {
            *world_of(seen.groups, seen.job.pids, seen.job.first_rank).values(),
            *(rank for each in members for rank in each),
        }
    )
    parts: dict[int, list[Part]] = {rank: [] for rank in ranks}
    for part in find_parts(seen, members):
        parts[part.rank].append(part)
    groups = {(str(index), view.name): members[index] for index, view in enumerate(seen.groups)}
    return {rank: _dump(seen, rank, parts[rank], groups) for rank in ranks}


def _dump(
    seen: Observation, rank: int, parts: Sequence[Part], groups: Mapping[tuple[str, str], Sequence[int]]
) -> dict[str, Any]:
    own = {group: members for group, members in groups.items() if rank in members}
    own.update({part.group: part.members for part in parts})
    stack = _stack_of(seen, rank)
    ordered = sorted(parts, key=lambda part: part.entry.start_ns)
    return {
        "version": _VERSION,
        "comm_lib_version": "",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str(sorted(members))}
            for (name, description), members in own.items()
        },
        "pg_status": {name: _status(parts, name) for name, _ in own},
        # Numbers start at 0 on every rank, because the analyser drops those below the highest first number.
        "entries": [_entry(seen, part, number, stack) for number, part in enumerate(ordered)],
    }


def _status(parts: Sequence[Part], name: str) -> dict[str, int]:
    numbers = [(part.number, bool(part.entry.end_ns)) for part in parts if part.group[0] == name]
    latest = max((number for number, _ in numbers), default=-1)
    ended = max((number for number, is_over in numbers if is_over), default=-1)
    return {
        "last_enqueued_collective": latest,
        "last_started_collective": latest,
        "last_completed_collective": ended,
    }


def _entry(seen: Observation, part: Part, number: int, stack: ThreadStack | None) -> dict[str, Any]:
    entry = part.entry
    is_message = entry.operation in ("send", "recv")
    offset_ns = int(seen.unix_s * 1e9) - seen.monotonic_ns
    is_over = bool(entry.end_ns)
    dtypes = [] if entry.operation == "barrier" else [_DTYPES.get(entry.dtype, entry.dtype)]
    return {
        "record_id": number,
        "pg_id": int(part.group[0].partition(":")[0]),
        "process_group": part.group,
        "collective_seq_id": part.number,
        "p2p_seq_id": part.number if is_message else 0,
        "op_id": number + 1,
        "profiling_name": part.name,
        "time_created_ns": entry.start_ns + offset_ns,
        "time_discovered_started_ns": entry.start_ns + offset_ns,
        "time_discovered_completed_ns": entry.end_ns + offset_ns if is_over else None,
        "duration_ms": (entry.end_ns - entry.start_ns) * 1e-6 if is_over else None,
        "input_sizes": part.sizes[0],
        "input_dtypes": dtypes,
        "output_sizes": part.sizes[1],
        "output_dtypes": dtypes,
        "state": "completed" if is_over else "started",
        "timeout_ms": 0,
        "is_p2p": is_message,
        "retired": is_over,
        "frames": _frames(entry, None if is_over else stack),
    }


def _stack_of(seen: Observation, rank: int) -> ThreadStack | None:
    keys = [key for key, number in world_of(seen.groups, seen.job.pids, seen.job.first_rank).items() if number == rank]
    threads = [row.thread for view in seen.groups for row in view.rows if key_of(row) in keys]
    texts = [process.stacks for process in seen.processes for key in keys if process.pid == key[0]]
    return stack_of(parse_stacks(texts[0]), threads[0]) if texts and threads else None


def _frames(entry: EntryFacts, stack: ThreadStack | None) -> list[dict[str, Any]]:
    """Return the stack of an operation: all calls while the rank is in it, or else only the line in the journal."""
    file, _, line = entry.location.rpartition(":")
    if not line.isdecimal():  # unknown, or cut off
        return []
    calls = [] if stack is None else [call for call in stack.frames if not is_launchers(call.file)]
    # The journal keeps only the end of a long path.
    while calls and not (calls[0].file.endswith(file) and str(calls[0].line) == line):
        calls.pop(0)
    if calls:
        return [{"name": call.function, "filename": call.file, "line": call.line} for call in calls]
    return [{"name": "called", "filename": file, "line": int(line)}]

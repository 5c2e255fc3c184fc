"""Runs cases one after the other, each a spawn() of two ranks in which one system call fails.

    python -m tests.system_calls.driver FOLDER groups|torch

The ranks use groups, or torch.distributed. It has the library preloaded. Each line of its input is a case, each line of
its output what came of it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import phalanx
from phalanx.launch import zygote_client
from tests import leftovers
from tests.system_calls.page import LAUNCHER, NOBODY, Page, become, call_number, open_page
from tests.system_calls.rank_program import be_rank, describe

_SPAWN_S = 80.0
_TIDY_S = 5.0


def main(folder: str, door: str) -> None:
    """Serve until the input ends."""
    vars(subprocess)["_USE_VFORK"] = False  # the library can't come between a program and vfork()
    page = open_page()
    become(LAUNCHER)
    notes = Path(folder) / "notes"
    spawn_ranks(notes, door)
    spawn_ranks(notes, door)  # what is opened once is open now
    print("ready", flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(run_case(page, case, notes, door)), flush=True)


def spawn_ranks(notes: Path, door: str) -> None:
    notes.write_text("")
    phalanx.spawn(be_rank, ranks=2, args=(str(notes), door), timeout_s=_SPAWN_S)


def run_case(page: Page, case: dict[str, Any], notes: Path, door: str) -> dict[str, Any]:
    """Make a call fail, and tell what came of it. Without a call, count those that could."""
    before, zygote = _held(), zygote_client.shared_zygote().pid
    failure: BaseException | None = None
    page.call = call_number(case["call"]) if case["call"] else -1
    page.error, page.first, page.count = case["errno"], case["first"], case["count"]
    page.struck = 0
    for number in range(len(page.counts)):
        page.counts[number] = 0
    began = time.monotonic()
    page.role = case["role"]
    try:
        spawn_ranks(notes, door)
    except BaseException as error:
        failure = error
    page.role = NOBODY
    facts = {
        "case": case,
        "seconds": time.monotonic() - began,
        "struck": page.struck,
        "counts": list(page.counts),
        "error": describe(failure),
        "ranks": [json.loads(line) for line in notes.read_text().splitlines()],
    }
    del failure
    return {**facts, "left": _left(before), "is_zygote_new": zygote_client.shared_zygote().pid != zygote}


def _held() -> list[str]:
    gc.collect()
    return sorted(name.split(":")[0] for name in leftovers.open_descriptors())


def _left(before: list[str]) -> list[str]:
    """Name what is left of ranks in this process and in the one they are forked from."""
    zygote_client.shared_zygote().await_ready()
    left = []
    if not leftovers.wait_until(lambda: not leftovers.rank_processes(), _TIDY_S):
        left.append(f"processes {leftovers.rank_processes()}")
    after = _held()
    if after != before:
        left.append(f"descriptors {before} became {after}")
    if leftovers.group_memory():
        left.append(f"memory {leftovers.group_memory()}")
    zygote = os.listdir(f"/proc/{zygote_client.shared_zygote().pid}/fd")
    left += [f"{len(zygote)} descriptors of the zygote"] if len(zygote) > _MOST_OF_ZYGOTE else []
    return left


_MOST_OF_ZYGOTE = 12  # standard streams, control, wake-up, epoll, and what torch opens

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

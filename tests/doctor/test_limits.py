"""Limits of a process, really set."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from phalanx.byte_sizes import format_size

_ASK = """
import json, resource, sys
from dataclasses import asdict
from phalanx.doctor import limits
name, soft, hard = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(getattr(resource, name), (soft, hard))
print(json.dumps(asdict(getattr(limits, sys.argv[1])())))
"""


def _ask(probe: str, limit: str, soft: int, hard: int | None = None) -> dict[str, str]:
    _, hardest = resource.getrlimit(getattr(resource, limit))
    arguments = [probe, limit, str(soft), str(hardest if hard is None else hard)]
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def test_few_open_files_have_room_for_few_ranks() -> None:
    answer = _ask("open_files", "RLIMIT_NOFILE", 64)
    assert (answer["status"], answer["text"]) == ("note", "64 a process, room for about 20 ranks")
    assert "limit of open files" in answer["advice"]


def test_too_few_open_files_are_a_problem_that_only_root_can_solve() -> None:
    answer = _ask("open_files", "RLIMIT_NOFILE", 24, 24)
    assert (answer["status"], answer["text"]) == ("problem", "24 a process, room for about 0 ranks")
    assert "only root can go above 24" in answer["advice"]


@pytest.mark.parametrize(("gibibytes", "status"), [(4, "note"), (64, "ok")])
def test_a_small_address_space_is_noted(gibibytes: int, status: str) -> None:
    answer = _ask("address_space", "RLIMIT_AS", gibibytes << 30)
    assert answer["status"] == status
    assert answer["text"].startswith(f"limited to {format_size(gibibytes << 30)} a process")


def test_locked_memory_is_only_named() -> None:
    answer = _ask("locked_memory", "RLIMIT_MEMLOCK", 65536)
    assert (answer["status"], answer["advice"]) == ("ok", "")
    assert answer["text"].startswith("64.0 KiB; phalanx locks none")

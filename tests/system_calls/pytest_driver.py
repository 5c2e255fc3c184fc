"""Runs cases one after the other, each a run of pytest with tests on two ranks, in which one system call fails.

    python -m tests.system_calls.pytest_driver FOLDER

It has the library preloaded, and forks a process for each run, so that torch is imported only once. Each line of its
input is a case, each line of its output what came of it.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - so that the runs have it

import phalanx.groups.connect
import phalanx.torch_backend.creation  # noqa: F401
from tests import leftovers
from tests.system_calls.page import LAUNCHER, NEWBORN, NOBODY, Page, become, call_number, open_page
from tests.testing.inner_runs import chosen

_RUN_S = 100.0
_TIDY_S = 5.0
_TESTS = """
import pytest, torch
import torch.distributed as dist
from tests.system_calls.page import NOBODY, become

@pytest.fixture(autouse=True)
def role(rank):
    become(rank)
    yield
    become(NOBODY)

@pytest.mark.ranks(2, timeout=60)
def test_group(group):
    for count in (4, 300_000):
        tensor = torch.ones(count)
        group.all_reduce(tensor)
        assert bool((tensor == 2).all())

@pytest.mark.ranks(2, timeout=60)
def test_process_group(process_group):
    dist.barrier()
"""
_TIMED_OUT = re.compile(r"^E +\S*OperationTimeoutError: |not done after", re.MULTILINE)
_OUTCOME = re.compile(r"^=+ .*\d+ (passed|failed|error).* in ", re.MULTILINE)


class _Launcher:
    """Lets calls fail while pytest runs a test on ranks, not while it imports and collects."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        if os.getpid() != self._pid:  # on a rank
            return (yield)
        become(LAUNCHER)
        try:
            return (yield)
        finally:
            become(NOBODY)


def main(folder: str) -> None:
    """Serve until the input ends."""
    page = open_page()
    leftovers_of_driver = set(_processes())
    tests = Path(folder) / "test_inner.py"
    tests.write_text(_TESTS)
    print("ready", flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(run_case(page, case, tests, leftovers_of_driver)), flush=True)


def run_case(page: Page, case: dict[str, Any], tests: Path, before: set[int]) -> dict[str, Any]:
    """Make a call fail, and tell what came of it. Without a call, count those that could."""
    page.call = call_number(case["call"]) if case["call"] else -1
    page.error, page.first, page.count = case["errno"], case["first"], case["count"]
    page.struck = 0
    for number in range(len(page.counts)):
        page.counts[number] = 0
    output = tests.with_name("output")
    began = time.monotonic()
    page.role = case["role"]
    pid = os.fork()
    if pid == 0:
        _run_pytest(tests, output)
    status, is_over = _wait(pid)
    page.role = NOBODY
    seconds = time.monotonic() - began
    text = output.read_text(errors="replace") if output.exists() else ""
    left = [] if leftovers.wait_until(lambda: set(_processes()) <= before, _TIDY_S) else ["processes"]
    for process in set(_processes()) - before:
        os.kill(process, signal.SIGKILL)
    return {
        "case": case,
        "seconds": seconds,
        "struck": page.struck,
        "counts": list(page.counts),
        "error": _error_of(text, status if is_over else None),
        "ranks": [],
        "left": left,
    }


def _run_pytest(tests: Path, output: Path) -> None:
    code = 99
    try:
        os.setpgid(0, 0)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.register_at_fork(after_in_child=lambda: become(NEWBORN))
        options = [*chosen(()), "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tests.parent)]
        code = int(pytest.main([*options, str(tests)], plugins=[_Launcher()]))
    finally:
        become(NOBODY)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> tuple[int, bool]:
    """Return how a run ended, and whether it did so by itself."""
    handle = os.pidfd_open(pid)
    end = select.poll()
    end.register(handle, select.POLLIN)
    is_over = bool(end.poll(_RUN_S * 1000))
    os.close(handle)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), is_over


def _error_of(text: str, code: int | None) -> dict[str, Any]:
    """Describe the outcome as driver.py describes an exception: an exit code of 1 with words is an error in words."""
    if code == 0:
        return {"kind": "", "text": "", "classes": [], "culprits": []}
    if code is None:
        problem = "it hung"
    elif code < 0 or "SIGSEGV" in text or "SIGABRT" in text:
        problem = f"exit code {code}, SIG"
    elif "INTERNALERROR" in text or "InternalError" in text or not _OUTCOME.search(text):
        problem = f"exit code {code}, no outcome of tests"
    elif _TIMED_OUT.search(text):
        problem = "only when the time was up"
    elif code != 1:
        problem = f"exit code {code}"
    else:
        told = "\n".join(line for line in text.splitlines() if line.startswith(("E ", "rank", "FAILED", "ERROR")))
        return {"kind": "outcome", "text": told, "classes": ["OSError"], "culprits": []}
    return {"kind": problem, "text": text[-3000:], "classes": [], "culprits": []}


def _processes() -> list[int]:
    """Return the processes that have this one's page: those that runs have started."""
    mark = f"FAILING_CALLS_PAGE={os.environ['FAILING_CALLS_PAGE']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # gone
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1])

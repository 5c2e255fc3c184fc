"""Test files of PyTorch that are not in the wheel, run from wherever the user has them. They are never copied here.

Every test runs in processes of its own, forked from one that has the virtual GPUs and the file: one that hangs or dies
takes no other with it.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.settings import copy_environment, set_environment
from phalanx_tools.conformance.forked_test import judge
from phalanx_tools.conformance.modes import Mode, enter_mode
from phalanx_tools.conformance.outcomes import Outcome, Report
from phalanx_tools.conformance.suite import import_common_distributed, skip_codes
from phalanx_tools.conformance.upstream import DEFAULT_TIMEOUT_S, Watch
from phalanx_tools.conformance.upstream_ranks import UPSTREAM_ERROR, UpstreamRanks

_SKIPPED = 13  # a process's exit code when its test said so; the reason is in the pipe
_SKIP_REASON = re.compile(r"skipping test \S+ for following reason: (.*)")
# A child process, as some tests start them, where the first use of the GPUs comes from two threads at once.
_CHILD = """
import sys, threading, torch
faults = []
def use(index):
    try:
        assert torch.ones(2, device=f"cuda:{index}").sum().item() == 2
    except BaseException as error:
        faults.append(error)
threads = [threading.Thread(target=use, args=[index]) for index in range(2)]
[thread.start() for thread in threads]
[thread.join(60) for thread in threads]
if faults:
    raise faults[0]
sys.exit(0 if torch.cuda.device_count() == int(sys.argv[1]) else f"it has {torch.cuda.device_count()} GPUs")
"""


@dataclass(frozen=True)
class TestFile:
    """One file, and what it is run on."""

    __test__ = False  # not one of ours

    name: str
    path: str
    num_gpus: int


FILES = {
    file.name: file
    for file in (
        TestFile("multigpu", "test_cuda_multigpu.py", 4),
        TestFile("dist2", "distributed/test_dist2.py", 2),
    )
}


def run_file(
    name: str, folder: Path, *, names: Sequence[str] = (), timeout_s: float = DEFAULT_TIMEOUT_S,
    watch: Watch = lambda *_: None,
) -> Report:  # fmt: skip
    """Run a test file, or some of its tests ("Class.test"), one after the other.

    Args:
        name: One of FILES.
        folder: PyTorch's sources, or their folder "test".
        names: Tests to run; all when empty.
        timeout_s: How long one test may take.
        watch: Told of every outcome, with how many are done and how many there are.

    Raises:
        UsageError: The file or a test is not there, or child processes would have no GPUs.
    """
    start = time.monotonic()
    file = FILES[name]
    path = _find(file, folder)
    enter_mode(Mode(name, "nccl", ("nccl", "gloo"), has_gpus=True), file.num_gpus)
    common = import_common_distributed()
    tests = dict(_tests_of(_load(path)))
    unknown = sorted(set(names) - set(tests))
    if unknown:
        raise UsageError(f"{path} has no test {', '.join(unknown)}")
    _check_children(file.num_gpus)
    outcomes: list[Outcome] = []
    chosen = list(names) or list(tests)
    for one in chosen:
        outcomes.append(_run(one, tests[one], timeout_s, common))
        watch(outcomes[-1], len(outcomes), len(chosen))
    return Report(name, f"on {file.num_gpus} virtual GPUs", tuple(outcomes), time.monotonic() - start)


def _find(file: TestFile, folder: Path) -> Path:
    base = Path(file.path).name
    for path in (folder / "test" / file.path, folder / file.path, folder / base):
        if path.is_file():
            return path.resolve()
    raise UsageError(
        f"there is no {base} in {folder}; give the folder of PyTorch's sources, of the version of your torch "
        "(PYTORCH_TESTS=folder with make)"
    )


def _load(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    inherited = copy_environment().get("PYTHONPATH")
    set_environment(PYTHONPATH=f"{path.parent}:{inherited}" if inherited else str(path.parent))  # for its own children
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tests_of(module: Any) -> Iterator[tuple[str, unittest.TestCase]]:
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, unittest.TestSuite):
            waiting = [*one, *waiting]
        else:
            yield f"{type(one).__name__}.{one._testMethodName}", one


def _check_children(num_gpus: int) -> None:
    """Raise unless a program that a test starts has the GPUs too: such tests look at little but its end."""
    command = [sys.executable, "-c", _CHILD, str(num_gpus)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=copy_environment(OMP_NUM_THREADS="1")
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise UsageError(f"a program started from here does not see {num_gpus} virtual GPUs: {last}")


def _run(name: str, case: Any, timeout_s: float, common: Any) -> Outcome:
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="phalanx-upstream-"))
    is_of_ranks = isinstance(case, common.MultiProcessTestCase)
    try:
        play = functools.partial(_play_rank, case, folder) if is_of_ranks else functools.partial(_play_alone, case)
        ranks = UpstreamRanks(int(case.world_size) if is_of_ranks else 1, folder, play)
        codes = ranks.run(start + timeout_s)
        status, reason = judge(codes, ranks, skip_codes(common) if is_of_ranks else {_SKIPPED: ranks.message(0)})
        said = _SKIP_REASON.search(ranks.output(0)) if status == "skipped" else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(name, status, said[1] if said else reason, time.monotonic() - start)


def _play_rank(case: Any, folder: Path, rank: int, pipe: Any) -> None:
    logging.getLogger(import_common_distributed().__name__).setLevel(logging.INFO)  # or it keeps its reasons to itself
    type(case)._run(rank, case._testMethodName, str(folder / "store"), pipe)


def _play_alone(case: unittest.TestCase, _: int, pipe: Any) -> None:
    import torch

    torch.cuda.init()  # upstream all tests share a process, and some take it that another has used the GPUs before
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    for _broken, text in [*result.errors, *result.failures]:
        pipe.send(text)
        sys.exit(UPSTREAM_ERROR)
    if result.unexpectedSuccesses:
        pipe.send("it passed, and upstream expects it to fail")
        sys.exit(UPSTREAM_ERROR)
    if result.skipped:
        pipe.send(result.skipped[0][1])
        sys.exit(_SKIPPED)
    if result.testsRun != 1:
        pipe.send(f"{result.testsRun} tests ran instead of one")
        sys.exit(UPSTREAM_ERROR)

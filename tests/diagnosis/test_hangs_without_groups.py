"""Jobs that hang where phalanx has no group: every rank, and what it has started, is shown with its line of code."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx.errors import OperationTimeoutError
from tests.diagnosis.jobs import LIMIT_S, diagnose, started_program
from tests.leftovers import group_memory, wait_until

pytestmark = pytest.mark.slow

_BEFORE_INIT = """
import os, time
import torch.distributed as dist

def load_data():
    while os.environ["RANK"] == "1":
        time.sleep(0.01)  # here

load_data()
dist.init_process_group("gloo")  # there
"""

_IN_GLOO = """
import time, torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    while True:
        time.sleep(0.01)  # here
dist.all_reduce(torch.ones(1))  # there
"""

_IN_A_WORKER = """
import os, time, torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        while os.environ["RANK"] == "1":
            time.sleep(0.01)  # here
        return index

for batch in DataLoader(Data(), num_workers=1):  # there
    pass
while os.environ["RANK"] == "0":
    time.sleep(0.01)
"""

_IN_A_WORKER_WHILE_A_PEER_WAITS = _IN_A_WORKER.replace(
    "for batch", "import phalanx\ngroup = phalanx.connect()\nfor batch"
).replace('while os.environ["RANK"] == "0":\n    time.sleep(0.01)', "group.barrier()")

_IN_NATIVE_CODE = """
import ctypes, os, threading

def wait_for_a_library():
    ctypes.PyDLL(None).sleep(600)  # here

if os.environ["RANK"] == "1":
    wait_for_a_library()
threading.Event().wait()  # there
"""


_IN_A_THREAD = """
import os, queue, threading, time

def load():
    while True:
        time.sleep(0.01)  # here

threading.Thread(target=queue.Queue().get, daemon=True).start()
loader = threading.Thread(target=load, daemon=True)
if os.environ["RANK"] == "1":
    loader.start()
    loader.join()  # there
"""


def _line_of(program: str, mark: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.parametrize(
    ("program", "culprit"),
    [
        (_BEFORE_INIT, "rank 1 is at {} in load_data"),
        (_IN_GLOO, "rank 1 is at {} in <module>"),
        (_IN_A_WORKER, "which rank 1 started, is at {} in __getitem__"),
        (_IN_NATIVE_CODE, "rank 1 is at {} in wait_for_a_library"),
    ],
    ids=["before init", "in Gloo", "in a worker", "in native code"],
)
def test_diagnose_names_the_line_of_every_rank(tmp_path: Path, program: str, culprit: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    here, there = (f"train.py:{_line_of(program, mark)}" for mark in ("here", "there"))
    wanted = culprit.format(f"{tmp_path.name}/{here}")
    # The line of the program comes first, then what it called.
    first_line = r"rank 1 \(pid \d+\), .*\n( +its child .*\n|  +thread .*\n)* +\S*train\.py:\d+"
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        are_there = wanted in shown and there in shown and "computes" not in shown
        return are_there and re.search(first_line, shown) is not None

    with started_program(str(script), "run", "-n", "2", module="phalanx.cli") as job:
        assert wait_until(is_shown, LIMIT_S), shown


_IN_A_TEST = """
import time
import pytest

def load_data():
    while True:
        time.sleep(0.01)  # here

@pytest.mark.ranks(2, timeout=600, kind=KIND)
def test_training(rank):
    if rank == 1:
        load_data()
    while True:
        time.sleep(0.01)  # there
"""

_IN_A_WORKER_OF_A_TEST = """
import time
import pytest
from torch.utils.data import DataLoader

class Data:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        while True:
            time.sleep(0.01)  # here

@pytest.mark.ranks(2, timeout=600, kind=KIND)
def test_training(rank):
    if rank == 1:
        list(DataLoader(Data(), num_workers=1))
    while True:
        time.sleep(0.01)  # there
"""


@pytest.mark.parametrize("kind", ["process", "pool", "thread"])
@pytest.mark.parametrize(
    ("program", "culprit"),
    [
        (_IN_A_TEST, "rank 1 is at {} in load_data"),
        (_IN_A_WORKER_OF_A_TEST, "which rank 1 started, is at {} in __getitem__"),
    ],
    ids=["in a rank", "in a worker"],
)
def test_diagnose_names_the_lines_of_the_ranks_of_a_test(tmp_path: Path, program: str, culprit: str, kind: str) -> None:
    if kind == "thread" and "DataLoader" in program:
        culprit = culprit.replace("rank 1", "ranks 0-1")  # the process of both has started it
    test = tmp_path / "test_train.py"
    test.write_text(program.replace("KIND", repr(kind)))
    here, there = (f"{tmp_path.name}/test_train.py:{_line_of(program, mark)}" for mark in ("here", "there"))
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        return culprit.format(here) in shown and f"rank 0 is at {there} in test_training" in shown

    with started_program(str(test), "-q", "-p", "no:cacheprovider", module="pytest") as job:
        assert wait_until(is_shown, LIMIT_S), shown
    # The line of the program comes first, below the name of the rank.
    assert re.search(rf"\nrank 0 \(pid \d+\), .*\n    {there} in test_training", shown) or kind == "thread"


_ONLY_ONE_IS_LEFT = """
import os, time

def train_alone():
    while True:
        time.sleep(0.01)  # here

if os.environ["RANK"] == "2":
    train_alone()
"""


def test_ranks_keep_their_numbers_when_others_have_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_ONLY_ONE_IS_LEFT)
    wanted = f"rank 2 is at {tmp_path.name}/train.py:{_line_of(_ONLY_ONE_IS_LEFT, 'here')} in train_alone"
    shown = ""

    def is_alone() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        return "train_alone" in shown and shown.count("ended with exit code 0") == 3

    with started_program(str(script), "run", "-n", "4", module="phalanx.cli") as job:
        assert wait_until(is_alone, LIMIT_S), shown
    assert wanted in shown


def test_the_worker_of_a_rank_that_holds_up_others_is_in_the_first_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    program = _IN_A_WORKER_WHILE_A_PEER_WAITS
    script.write_text(program)
    worker = f"which rank 1 started, is at {tmp_path.name}/train.py:{_line_of(program, 'here')} in __getitem__"
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        holdup, *below = [line for line in shown.splitlines() if line.lstrip().startswith("rank 1 holds up")] or [""]
        return bool(holdup) and worker in "\n".join(shown.splitlines()[:4]) and not below

    with started_program(str(script), "run", "-n", "2", module="phalanx.cli") as job:
        assert wait_until(is_shown, LIMIT_S), shown


def test_diagnose_shows_threads_that_run_the_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_IN_A_THREAD)
    here, there = (rf"\S+train\.py:{_line_of(_IN_A_THREAD, mark)}" for mark in ("here", "there"))
    threads = rf"  thread \d+\n    {here} in load\n  \.\.\. 1 more thread"
    wanted = rf"    {there} in <module>, which called:\n( {{6}}.*\n)+{threads}"
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        return re.search(wanted, shown) is not None

    with started_program(str(script), "run", "-n", "2", module="phalanx.cli") as job:
        assert wait_until(is_shown, LIMIT_S), shown
        (record,) = [
            each for each in json.loads(diagnose(str(job.pid), "--json").stdout)["processes"] if "in load" in str(each)
        ]
        assert record["stacks"].count("Thread ") == 2


def test_a_time_limit_shows_where_ranks_and_their_workers_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_IN_A_WORKER)
    for limit_s in (5, 20, 50):  # a busy machine may need the longer ones until the worker runs
        ended = subprocess.run(
            [sys.executable, "-m", "phalanx.cli", "run", "-n", "2", "--timeout", str(limit_s), str(script)],
            capture_output=True, text=True, timeout=2 * LIMIT_S + limit_s, check=False,
        )  # fmt: skip
        assert ended.returncode == 124
        here = f"train.py:{_line_of(_IN_A_WORKER, 'here')} in __getitem__"
        if re.search(rf"rank 1 is at \S+train\.py:\d+.*\n    pid \d+, which it started, is at \S+{here}", ended.stderr):
            return
    pytest.fail(ended.stderr)


def _hang() -> None:
    if phalanx.connect().rank == 1:
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_spawn_says_where_late_ranks_are(kind: str) -> None:
    line = _hang.__code__.co_firstlineno + 3
    for limit_s in (2, 10, 40):  # as above
        with pytest.raises(OperationTimeoutError) as caught:
            phalanx.spawn(_hang, ranks=2, timeout_s=limit_s, kind=kind)  # type: ignore[arg-type]
        text = str(caught.value)
        del caught  # its traceback holds what threads have left
        assert wait_until(lambda: gc.collect() >= 0 and not group_memory(), LIMIT_S)
        if f"rank 1 at diagnosis/{Path(__file__).name}:{line} in _hang" in text:
            return
    pytest.fail(text)


class _Data:
    """A dataset of torch, of which a worker can't load anything."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        while True:
            time.sleep(0.01)


def _hang_in_a_worker() -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(_Data(), num_workers=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_spawn_says_where_the_workers_of_late_ranks_are(kind: str) -> None:
    file = rf"diagnosis/{Path(__file__).name}"
    line = _Data.__getitem__.__code__.co_firstlineno + 2
    place = (
        rf"\n  rank {{}} at {file}:\d+ in _hang_in_a_worker; pid \d+, which it started, at {file}:{line} in __getitem__"
    )
    for limit_s in (5, 20, 50):  # as above
        with pytest.raises(OperationTimeoutError) as caught:
            phalanx.spawn(_hang_in_a_worker, ranks=2, timeout_s=limit_s, kind=kind)  # type: ignore[arg-type]
        text = str(caught.value)
        del caught  # as above
        assert wait_until(lambda: gc.collect() >= 0 and not group_memory(), LIMIT_S)
        if all(re.search(place.format(rank), text) for rank in range(2)):
            return
    pytest.fail(text)

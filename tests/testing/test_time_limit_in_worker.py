"""A test whose time is up in a worker of a DataLoader: the report shows the worker's line of code."""

from __future__ import annotations

import re

import pytest

from tests.testing.inner_runs import InnerRuns

pytestmark = pytest.mark.slow

_CHILDREN = r"their children pid \d+, \d+, at \S+test_inner.py:\d+ in decode:\n"
_SOURCE = """
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, hangs): self.hangs = hangs
    def __len__(self): return 4
    def __getitem__(self, index):
        if self.hangs: decode()
        return index

def decode():
    while True: time.sleep(0.01)

def train():
    idle = iter(DataLoader(Data(False), num_workers=1))
    assert next(idle) == 0
    for batch in DataLoader(Data(True), num_workers=1): pass

@pytest.mark.ranks(3, timeout={limit_s})
def test_hang(rank):
    if rank: train()
    while True: time.sleep(0.01)
"""


def _report(inner: InnerRuns, wanted: str, *options: str) -> str:
    """Run it with a longer limit until the report has the wanted text: a busy machine may need it for the workers."""
    for limit_s in (4, 20, 60):
        shown = str(inner.run(_SOURCE.format(limit_s=limit_s), *options).stdout)
        if re.search(wanted, shown):
            break
    return shown


@pytest.mark.parametrize("options", [["--ranks-kind=process"], ["--ranks-kind=pool"], ["--ranks-shadow"]], ids=str)
def test_the_report_shows_what_the_workers_of_late_ranks_do(inner: InnerRuns, options: list[str]) -> None:
    start = r"\nranks 1-2, at \S+test_inner.py:\d+ in train:\n"
    called = r"  File \S+test_inner.py\", line \d+, in test_hang\n    if rank: train\(\)\n"
    called += r"  File \S+test_inner.py\", line \d+, in train\n    for batch in DataLoader.*\n"
    folded = r"  \.\.\. \d+ calls inside torch and Python \(PHALANX_FULL_TRACE=1 shows them\)\n"
    threads = r"(  \.\.\. \d+ more threads? inside .*\n)?"
    worker = r"  File .*, in __getitem__\n.*\n  File .*, in decode\n    while True: time.sleep\(0.01\)\n"
    wanted = start + called + folded + threads + _CHILDREN + worker
    shown = _report(inner, wanted, *options)
    assert re.search(wanted, shown), shown
    assert shown.count("child") == 1, "the idle workers need no line"
    assert "_bootstrap" not in shown
    assert "forked_ranks.py" not in shown


def test_a_full_trace_shows_the_calls_inside_torch_and_python(inner: InnerRuns) -> None:
    shown = _report(inner, _CHILDREN, "--full-trace")
    assert "dataloader.py" in shown
    assert "_worker_loop" in shown
    assert "_bootstrap_inner" in shown
    assert "calls inside" not in shown

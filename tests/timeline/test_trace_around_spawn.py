"""`with phalanx.trace(...)` around `phalanx.spawn`: the ranks are recorded, not the process that starts them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.timeline.spans import read_spans
from tests.run_ranks import every_kind

pytestmark = pytest.mark.slow


def _work(num_calls: int = 1) -> None:
    group = phalanx.connect()
    for _ in range(num_calls):
        group.all_reduce(torch.ones(3))


def _calls_by_rank(folder: Path) -> Counter[int]:
    return Counter(span.rank for span in read_spans(folder).spans)


@every_kind
def test_a_block_around_spawn_records_every_rank(kind: Any, tmp_path: Path) -> None:
    with phalanx.trace(tmp_path) as trace:
        phalanx.spawn(_work, ranks=3, kind=kind, args=(2,), timeout_s=60)
    assert trace.written is not None
    assert (trace.written.num_spans, trace.written.warnings) == (6, ())
    assert _calls_by_rank(tmp_path) == {0: 2, 1: 2, 2: 2}
    assert len(list(tmp_path.glob("rank-[012]-*.raw"))) == len(list(tmp_path.glob("*.raw"))) == 3


@every_kind
def test_all_spawns_of_one_block_are_on_its_page(kind: Any, tmp_path: Path) -> None:
    with phalanx.trace(tmp_path) as trace:
        phalanx.spawn(_work, ranks=2, kind=kind, timeout_s=60)
        phalanx.spawn(_work, ranks=1, kind=kind, args=(5,), timeout_s=60)
    assert trace.written is not None
    assert trace.written.warnings == ()
    assert _calls_by_rank(tmp_path) == {0: 6, 1: 1}


@every_kind
def test_a_second_block_shows_nothing_of_the_first(kind: Any, tmp_path: Path) -> None:
    for num_ranks in (3, 2):
        with phalanx.trace(tmp_path):
            phalanx.spawn(_work, ranks=num_ranks, kind=kind, timeout_s=60)
    assert _calls_by_rank(tmp_path) == {0: 1, 1: 1}


@every_kind
def test_ranks_that_are_spawned_after_the_block_do_not_record(kind: Any, tmp_path: Path) -> None:
    before = dict(os.environ)
    with phalanx.trace(tmp_path):
        phalanx.spawn(_work, ranks=2, kind=kind, timeout_s=60)
    assert dict(os.environ) == before
    phalanx.spawn(_work, ranks=2, kind=kind, args=(10,), timeout_s=60)
    assert _calls_by_rank(tmp_path) == {0: 1, 1: 1}


@every_kind
def test_a_rank_that_raises_leaves_a_timeline_and_its_exception(kind: Any, tmp_path: Path) -> None:
    def fail() -> None:
        _work()
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"), phalanx.trace(tmp_path):
        phalanx.spawn(fail, ranks=2, kind=kind, timeout_s=60)
    assert (tmp_path / "timeline.html").is_file()
    assert _calls_by_rank(tmp_path) == {0: 1, 1: 1}


def test_an_exception_of_the_block_comes_before_a_page_that_can_t_be_written(tmp_path: Path) -> None:
    (tmp_path / "timeline.html").mkdir()
    with pytest.raises(LookupError, match="lost") as caught, phalanx.trace(tmp_path):
        raise LookupError("lost")
    (note,) = caught.value.__notes__
    assert note.startswith("trace: no timeline: ")
    assert "timeline.html can't be written: Is a directory" in note


def test_a_thread_rank_can_not_record_twice(tmp_path: Path) -> None:
    def work() -> None:
        with phalanx.trace(tmp_path / "inner"):
            pass

    with pytest.raises(phalanx.UsageError, match=r"already recording, into .*outer"), phalanx.trace(tmp_path / "outer"):
        phalanx.spawn(work, ranks=1, kind="thread", timeout_s=60)


def test_a_block_in_which_no_group_was_made_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phalanx"), phalanx.trace(tmp_path) as trace:
        phalanx.spawn(int, ranks=2, timeout_s=60)
    assert trace.written is not None
    assert "no rank has made one" in trace.written.page.read_text()
    assert "There is no call in this recording. A rank records from its first group" in caplog.text


def test_a_block_in_which_no_operation_ran_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phalanx"), phalanx.trace(tmp_path):
        phalanx.spawn(_work, ranks=2, args=(0,), timeout_s=60)
    assert "The ranks made groups, but called no operation." in caplog.text

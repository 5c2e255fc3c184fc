from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.timeline.spans import Span, Timeline, read_spans
from phalanx.timeline.waits import find_waits
from tests.timeline.raw_files import RawRank


def _timeline(folder: Path, ranks: Sequence[RawRank]) -> Timeline:
    for rank in ranks:
        rank.write(folder)
    timeline = read_spans(folder)
    find_waits(timeline)
    return timeline


def _collective(folder: Path, operation: str, times: Sequence[tuple[int, int]], **more: Any) -> list[Span]:
    ranks = [RawRank(rank).group(num_ranks=len(times)) for rank in range(len(times))]
    for rank, (start_ns, end_ns) in zip(ranks, times, strict=True):
        rank.call(operation, 1, start_ns, end_ns, **more)
    return _timeline(folder, ranks).spans


def _waits(spans: Sequence[Span]) -> list[tuple[int, int | None]]:
    return [(span.waited_ns, span.waited_for) for span in spans]


def test_everybody_waits_for_the_last(tmp_path: Path) -> None:
    spans = _collective(tmp_path, "all_reduce", [(10, 100), (90, 101), (50, 102)])
    assert _waits(spans) == [(80, 1), (0, None), (40, 1)]
    assert len({span.event for span in spans}) == 1


def test_nobody_waited_for_a_rank_that_came_after_it_had_left(tmp_path: Path) -> None:
    spans = _collective(tmp_path, "reduce", [(10, 200), (20, 25), (150, 160)], root=0)
    assert _waits(spans) == [(140, 2), (0, None), (0, None)]


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather"])
def test_ranks_that_need_only_the_root_wait_only_for_it(tmp_path: Path, operation: str) -> None:
    spans = _collective(tmp_path, operation, [(10, 100), (50, 101), (60, 102)], root=1)
    assert _waits(spans) == [(40, 1), (10, 2), (0, None)]


def test_a_rank_that_never_came_was_waited_for_until_the_end(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group(num_ranks=3).call("barrier", 1, 10, 20) for rank in range(3)]
    ranks[0].call("barrier", 2, 30, 930)
    ranks[1].call("barrier", 2, 40, 930)
    spans = [span for span in _timeline(tmp_path, ranks).spans if span.number == 2]
    assert _waits(spans) == [(900, 2), (890, 2)]


@pytest.mark.parametrize("reason", ["disk full", "recorded later"])
def test_a_rank_whose_recording_is_not_whole_is_not_blamed(tmp_path: Path, reason: str) -> None:
    late = RawRank(1, is_truncated=reason == "disk full").group()
    if reason == "recorded later":
        late.call("barrier", 2, 90, 100)
    early = RawRank(0).group().call("barrier", 1, 10, 20).call("barrier", 2, 80, 100)
    spans = _timeline(tmp_path, [early, late]).spans
    assert _waits(spans[:1]) == [(0, None)]


def test_messages_are_paired_in_their_order_by_way_and_tag(tmp_path: Path) -> None:
    sender, receiver = RawRank(0).group(), RawRank(1).group()
    for number, (tag, start_ns) in enumerate([(0, 10), (7, 20), (0, 30)]):
        sender.call("send", number, start_ns, start_ns + 1, peer=1, tag=tag)
    for number, (tag, start_ns) in enumerate([(7, 40), (0, 50), (0, 60)]):
        receiver.call("recv", number, start_ns, start_ns + 1, peer=0, tag=tag)
    spans = _timeline(tmp_path, [sender, receiver]).spans
    starts = {span.event: [other.start_ns + 10 for other in spans if other.event == span.event] for span in spans}
    assert sorted(starts.values()) == [[10, 50], [20, 40], [30, 60]]


def test_both_ends_of_a_message_wait_for_the_other(tmp_path: Path) -> None:
    sender, receiver = RawRank(0).group(), RawRank(1).group()
    sender.call("send", 1, 100, 110, peer=1).call("send", 2, 200, 290, peer=1)
    receiver.call("recv", 1, 40, 112, peer=0).call("recv", 2, 280, 290, peer=0)
    assert _waits(_timeline(tmp_path, [sender, receiver]).spans) == [(0, None), (80, 1), (60, 0), (0, None)]


def test_a_receive_that_never_ended_waited_all_the_time(tmp_path: Path) -> None:
    known = RawRank(0).group().call("recv", 1, 100, 0, peer=1)
    anybody = RawRank(1).group().call("recv", 1, 150, 0, peer=-1).call("barrier", 1, 200, 300)
    spans = _timeline(tmp_path, [known, anybody]).spans
    assert _waits(spans[:2]) == [(200, 1), (150, None)]


def test_groups_of_the_same_name_and_number_do_not_mix(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group(num_ranks=1, rank=0, nonce=bytes([rank + 1]) * 16) for rank in range(2)]
    for rank, raw in enumerate(ranks):
        raw.call("barrier", 1, 10 + 50 * rank, 100)
    assert _waits(_timeline(tmp_path, ranks).spans) == [(0, None), (0, None)]

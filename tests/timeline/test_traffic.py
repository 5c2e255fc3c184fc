from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.timeline.spans import read_spans
from phalanx.timeline.traffic import RULES, Matrix, count_traffic
from phalanx.timeline.waits import find_waits
from tests.timeline.raw_files import RawRank


def _traffic(folder: Path, ranks: list[RawRank]) -> Matrix:
    for rank in ranks:
        rank.write(folder)
    timeline = read_spans(folder)
    find_waits(timeline)
    return count_traffic(timeline)


EVERY_PAIR = {(source, to) for source in range(3) for to in range(3) if source != to}


@pytest.mark.parametrize(
    ("operation", "pairs"),
    [
        ("all_reduce", dict.fromkeys(EVERY_PAIR, 200.0)),
        ("all_gather", dict.fromkeys(EVERY_PAIR, 300.0)),
        ("all_to_all", dict.fromkeys(EVERY_PAIR, 100.0)),
        ("reduce_scatter", dict.fromkeys(EVERY_PAIR, 300.0)),
        ("broadcast", {(1, 0): 300.0, (1, 2): 300.0}),
        ("scatter", {(1, 0): 300.0, (1, 2): 300.0}),
        ("reduce", {(0, 1): 300.0, (2, 1): 300.0}),
        ("gather", {(0, 1): 300.0, (2, 1): 300.0}),
        ("barrier", {}),
    ],
)
def test_traffic_is_the_least_that_must_move(tmp_path: Path, operation: str, pairs: Matrix) -> None:
    ranks = [RawRank(rank).group(num_ranks=3) for rank in range(3)]
    for rank in ranks:
        rank.call(operation, 1, 10, 20, size_bytes=300, root=1)
    assert _traffic(tmp_path, ranks) == pairs


def test_equal_collectives_add_up_and_uneven_blocks_count_by_their_sender(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group() for rank in range(2)]
    for number in range(5):
        for rank, raw in enumerate(ranks):
            raw.call("all_gather", number, 10 * number, 10 * number + 5, size_bytes=100 + rank)
    assert _traffic(tmp_path, ranks) == {(0, 1): 500, (1, 0): 505}


def test_ranks_of_a_smaller_group_count_under_their_world_ranks(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group(rank=rank - 4, num_ranks=2) for rank in (4, 5)]
    for raw in ranks:
        raw.call("broadcast", 1, 10, 20, size_bytes=8, root=1)
    assert _traffic(tmp_path, ranks) == {(5, 4): 8}


def test_messages_count_once_though_two_ranks_recorded_them(tmp_path: Path) -> None:
    sender, receiver = RawRank(0).group(), RawRank(1).group()
    sender.call("send", 1, 10, 20, peer=1, size_bytes=64)
    receiver.call("recv", 1, 10, 20, peer=0, size_bytes=64)
    assert _traffic(tmp_path, [sender, receiver]) == {(0, 1): 64}


def test_what_never_ended_moved_nothing(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group().call("all_reduce", 1, 10, 0, size_bytes=64) for rank in range(2)]
    assert _traffic(tmp_path, ranks) == {}


def test_the_rules_on_the_page_name_every_operation() -> None:
    named = {name for names, _ in RULES for name in names.split(", ")}
    assert len(named) == 11

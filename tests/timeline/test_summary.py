from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.timeline import units
from phalanx.timeline.spans import Timeline, read_spans
from phalanx.timeline.summary import count_waits, describe_gaps, rank_list, tally
from phalanx.timeline.waits import find_waits
from tests.timeline.raw_files import RawRank


def _timeline(folder: Path, *ranks: RawRank) -> Timeline:
    for rank in ranks:
        rank.write(folder)
    timeline = read_spans(folder)
    find_waits(timeline)
    return timeline


def test_waiting_is_summed_by_rank_and_names_the_rank_waited_for_most(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group(num_ranks=3) for rank in range(3)]
    for number, starts in enumerate([(0, 60, 50), (100, 120, 200)]):
        for rank, start_ns in zip(ranks, starts, strict=True):
            rank.call("barrier", number, start_ns, 70 + 130 * number)
    waits = count_waits(_timeline(tmp_path, *ranks))
    assert [(rank.rank, rank.waited_ns, rank.for_rank) for rank in waits] == [(0, 160, 2), (1, 80, 2), (2, 10, 1)]
    assert waits[0].share == pytest.approx(0.8)
    assert waits[0].for_rank_share == pytest.approx(100 / 160)


def test_waiting_in_several_calls_at_once_counts_once(tmp_path: Path) -> None:
    early, late = RawRank(0).group(), RawRank(1).group()
    early.call("all_reduce", 1, 0, 110, is_async=True).call("barrier", 2, 50, 160)
    late.call("all_reduce", 1, 100, 110, is_async=True).call("barrier", 2, 150, 160)
    first = count_waits(_timeline(tmp_path, early, late))[0]
    assert (first.rank, first.waited_ns, first.async_ns) == (0, 150, 50)


def test_calls_are_tallied_by_name_and_unnamed_ones_left_out(tmp_path: Path) -> None:
    rank = RawRank(0).group(num_ranks=1).call("barrier", 1, 0, 10)
    rank.call("broadcast", 2, 10, 40, size_bytes=5, place="a.py:1").call("broadcast", 3, 50, 60, size_bytes=6)
    timeline = _timeline(tmp_path, rank)
    by_operation = [(one.name, one.num_calls, one.size_bytes, one.total_ns)
                    for one in tally(timeline, lambda span: span.call.operation)]  # fmt: skip
    assert by_operation == [("broadcast", 2, 11, 40), ("barrier", 1, 0, 10)]
    assert [one.name for one in tally(timeline, lambda span: span.place)] == ["a.py:1"]


def test_a_whole_recording_has_no_gaps(tmp_path: Path) -> None:
    ranks = [RawRank(rank).group().call("barrier", 1, 0, 10) for rank in range(2)]
    assert describe_gaps(_timeline(tmp_path, *ranks)) == []


def test_gaps_are_told_in_words(tmp_path: Path) -> None:
    full = RawRank(0, pid=10, is_truncated=True).group(num_ranks=5)
    killed = RawRank(1, pid=11).group(num_ranks=5).call("all_reduce", 7, 5, 0, place="train.py:61")
    killed.call("barrier", 8, 6, 0)
    sender = RawRank(2, pid=12).group(num_ranks=5).call("send", 1, 5, 6, peer=0)
    (tmp_path / "rank-3-13.raw").write_bytes(b"")
    path = sender.write(tmp_path)
    timeline_gaps = describe_gaps(_timeline(tmp_path, full, killed))
    assert timeline_gaps == [
        "Rank 0 (pid 10) could not record everything, because the disk was full: its later calls are missing.",
        "Rank 3 (pid 13) recorded nothing: it ended before its first call.",
        'Rank 1 never returned from all_reduce #7 of group "world", train.py:61 and from 1 other call: '
        "it was killed, or still ran when the recording ended.",
        'Group "world" has 5 ranks. There is no recording of ranks 3-4.',
        "This recording has no receive for 1 sent message.",
    ]
    path.write_bytes(path.read_bytes()[:300])
    assert "The file of rank 2, rank-2-12.raw, ends in the middle of a record." in describe_gaps(read_spans(tmp_path))


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([5, 0, 2, 1], "ranks 0-2, 5"), (range(64), "ranks 0-63")]
)
def test_ranks_are_written_as_runs(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_500, "1.50 us"), (999_900, "1.00 ms"), (23_456_000, "23.5 ms"), (6e10, "60.0 s")],
)
def test_durations_have_three_digits(value_ns: float, text: str) -> None:
    assert units.duration(value_ns) == text

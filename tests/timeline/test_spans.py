from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.timeline.rows import make_rows
from phalanx.timeline.spans import read_spans
from tests.timeline.raw_files import UNIX_MINUS_MONOTONIC_NS, RawRank


def test_times_count_from_the_first_call_of_all(tmp_path: Path) -> None:
    RawRank(0).group().call("barrier", 1, 5_000, 9_000).write(tmp_path)
    RawRank(1).group().call("barrier", 1, 4_000, 9_500).write(tmp_path)
    timeline = read_spans(tmp_path)
    assert [(span.rank, span.start_ns, span.end_ns) for span in timeline.spans] == [(0, 1_000, 5_000), (1, 0, 5_500)]
    assert timeline.duration_ns == 5_500
    assert timeline.start_unix_ns == UNIX_MINUS_MONOTONIC_NS + 4_000


def test_spans_come_by_start_though_files_have_them_by_end(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("barrier", 2, 20, 30).call("all_reduce", 1, 10, 40, is_async=True)
    rank.write(tmp_path)
    assert [span.number for span in read_spans(tmp_path).spans] == [1, 2]


def test_a_call_that_never_ended_lasts_until_the_end_of_the_recording(tmp_path: Path) -> None:
    RawRank(0).group().call("barrier", 1, 100, 0).write(tmp_path)
    RawRank(1).group().call("barrier", 1, 100, 900).write(tmp_path)
    dead, alive = read_spans(tmp_path).spans
    assert (dead.is_finished, dead.end_ns) == (False, 800)
    assert alive.is_finished


def test_groups_are_the_same_by_nonce_and_told_apart_by_number(tmp_path: Path) -> None:
    for rank in range(4):
        raw = RawRank(rank).group(0, "world", num_ranks=4)
        nonce = bytes([50 + rank // 2]) * 16
        raw.group(1, "pair", rank=rank % 2, num_ranks=2, nonce=nonce).write(tmp_path)
    groups = read_spans(tmp_path).groups
    assert [(group.label, group.members) for group in groups] == [
        ("world", {0: 0, 1: 1, 2: 2, 3: 3}),
        ("pair", {0: 0, 1: 1}),
        ("pair #2", {0: 2, 1: 3}),
    ]


def test_ranks_that_do_not_know_their_number_get_free_ones_by_their_place_in_the_group(tmp_path: Path) -> None:
    RawRank(1, pid=5).group(rank=0, num_ranks=3).write(tmp_path)
    RawRank(-1, pid=9).group(rank=1, num_ranks=3).write(tmp_path)
    RawRank(-1, pid=7).group(rank=2, num_ranks=3).write(tmp_path)
    processes = read_spans(tmp_path).processes
    assert [(process.rank, process.pid) for process in processes] == [(0, 9), (1, 5), (2, 7)]


def test_ranks_that_are_threads_of_one_process_have_rows_of_their_own(tmp_path: Path) -> None:
    rank = RawRank(-1).group(0, rank=0, nonce=b"x" * 16).group(1, rank=1, nonce=b"x" * 16)
    rank.call("barrier", 1, 1, 5, group=0).call("barrier", 1, 2, 5, group=1).write(tmp_path)
    timeline = read_spans(tmp_path)
    assert [span.rank for span in timeline.spans] == [0, 1]
    assert timeline.ranks == [0, 1]


def test_files_of_two_machines_are_not_compared_silently(tmp_path: Path) -> None:
    RawRank(0, host="one").write(tmp_path)
    RawRank(1, host="two").write(tmp_path)
    assert read_spans(tmp_path).clocks_differ


def test_an_empty_folder_says_that_the_program_made_no_group(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_spans(tmp_path)
    first, advice = str(caught.value).splitlines()
    assert first == (
        f"{tmp_path} holds no recording (rank-*.raw): it is empty, so no rank made a group of phalanx or called an "
        "operation of one"
    )
    assert advice.startswith("  do       make a group in the program, with phalanx.connect() or init_process_group(")
    assert "--trace" not in advice  # whoever sees this under `phalanx run` has just given that option


@pytest.mark.parametrize(
    ("name", "reason"), [("notes.txt", "it has only other files. A rank records"), ("timeline.html", "it has a page")]
)
def test_a_folder_without_a_recording_says_why(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=reason):
        read_spans(tmp_path)


def test_overlapping_async_calls_get_further_rows(tmp_path: Path) -> None:
    rank = RawRank(0).group(0, "world", num_ranks=1)
    rank.call("all_reduce", 1, 10, 50, is_async=True).call("all_reduce", 2, 20, 60, is_async=True)
    rank.call("all_reduce", 3, 50, 70, is_async=True).call("all_reduce", 4, 55, 56, is_async=True).write(tmp_path)
    rows = make_rows(read_spans(tmp_path))
    assert [(row.label, [span.number for span in row.spans]) for row in rows] == [
        ("world", [1, 3]),
        ("world (2)", [2]),
        ("world (3)", [4]),
    ]

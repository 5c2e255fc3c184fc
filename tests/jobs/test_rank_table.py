from __future__ import annotations

import io

from rich.console import Console

from phalanx.jobs.notes import Note
from phalanx.jobs.rank import JobRank
from phalanx.jobs.rank_table import choose_ranks, make_table
from tests.diagnosis.observations import entry


def _waiting_ranks(num_ranks: int, late: int) -> list[JobRank]:
    ranks = [
        JobRank(
            number,
            pid=1000 + number,
            doing=entry(52),
            waits_for=(late,),
            operations_per_s=1234.5,
            bytes_per_s=2.5e6,
            memory_bytes=512_000_000,
            last_line=b"\x1b[32mstep 7\x1b[0m",
        )
        for number in range(num_ranks)
    ]
    ranks[late].doing, ranks[late].waits_for = None, ()
    return ranks


def _fail(rank: JobRank) -> None:
    rank.note = Note("ValueError: bad batch", "train.py:61", 1, False)
    rank.fail()


def _draw(ranks: list[JobRank], width: int, height: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, height=height).print(make_table(ranks, "phalanx run  train", width, height))
    return file.getvalue().rstrip("\n").splitlines()


def test_a_rank_is_shown_with_all_there_is() -> None:
    ranks = _waiting_ranks(3, late=2)
    lines = _draw(ranks, 120, 30)
    assert lines[0] == "phalanx run  train"
    assert lines[1].split() == ["rank", "state", "operation", "ops/s", "bytes/s", "memory", "last", "output"]
    shown = "0 waiting all_reduce #52, train.py:61, for rank 2 1234 2.5MB 512MB step 7"
    assert " ".join(lines[2].split()) == shown
    assert " ".join(lines[4].split()) == "2 running 1234 2.5MB 512MB step 7"


def test_on_a_narrow_screen_for_whom_counts_more_than_where() -> None:
    assert "all_reduce #52 for rank 2" in _draw(_waiting_ranks(3, late=2), 80, 24)[2]


def test_many_ranks_are_folded_to_what_fits() -> None:
    ranks = _waiting_ranks(64, late=40)
    _fail(ranks[50])
    ranks[63].status = 0
    lines = _draw(ranks, 80, 24)
    assert len(lines) <= 24 * 2 // 3
    assert all(len(line) <= 80 for line in lines)
    numbers = [int(line.split()[0]) for line in lines[2:-1]]
    assert numbers == sorted(numbers)
    assert {40, 50} <= set(numbers), "the one they wait for, and the one that failed"
    assert lines[-1].split() == ["and", "51", "more:", "50", "waiting,", "1", "done"]


def test_even_a_tiny_screen_shows_who_failed() -> None:
    ranks = _waiting_ranks(64, late=40)
    _fail(ranks[50])
    assert [rank.number for rank in choose_ranks(ranks, 2)] == [40, 50]
    assert any("ValueError: bad" in line for line in _draw(ranks, 80, 5))

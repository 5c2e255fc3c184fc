"""When snapshots prove that ranks can never go on, and when they don't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phalanx.diagnosis.deadlock import PATIENCE_WITH_THREADS_S, Deadlock, find_deadlock
from phalanx.diagnosis.views import GroupView
from phalanx.engine.facts import SEVERAL, RankFacts
from tests.diagnosis.observations import entry, fault, group, receiving, row, waiting

_KNOWN = range(800, 900)


def _find(*groups: GroupView, known: Sequence[int] = _KNOWN) -> set[int]:
    """Return the ranks that can't go on."""
    found = find_deadlock(groups, known)
    return set() if found is None else {pid - 800 for pid, _ in found.ranks}


def _sending(rank: int, destination: int, *, tag: int = 0) -> RankFacts:
    return row(rank, mail=entry(1, "send", root=destination, peer=destination, count=tag))


def _two_groups(first: RankFacts | None = None, second: RankFacts | None = None) -> list[GroupView]:
    """Two groups that ranks 0 and 1 use in different order."""
    a = group(first or waiting(0, 1), row(1), name="a")
    b = group(row(0), second or waiting(1, 0), name="b")
    return [a, b]


def test_two_groups_in_different_order() -> None:
    assert _find(*_two_groups()) == {0, 1}
    found = find_deadlock(_two_groups(), _KNOWN)
    assert found is not None
    first, *lines = found.describe().splitlines()
    assert first == "ranks 0-1 wait for each other"
    assert [line.partition(" in ")[0] for line in lines] == ["rank 0 waits for rank 1", "rank 1 waits for rank 0"]
    assert ['"a"' in lines[0], '"b"' in lines[1]] == [True, True]


def test_who_waits_for_such_ranks_can_not_go_on_either_but_is_not_in_the_circle() -> None:
    third = group(row(0), row(1), waiting(2, 0), name="c")
    assert _find(*_two_groups(), third) == {0, 1, 2}
    found = find_deadlock([*_two_groups(), third], _KNOWN)
    assert found is not None
    assert "rank 2" not in found.describe()


def test_a_rank_that_needs_one_of_two_ranks_goes_on() -> None:
    receives_any = receiving(0, -1)
    assert _find(group(receives_any, receiving(1, 0), row(2))) == set()
    assert _find(group(receives_any, receiving(1, 0), receiving(2, 0))) == {0, 1, 2}


def test_a_long_circle_is_cut() -> None:
    view = group(*(receiving(rank, (rank + 1) % 20) for rank in range(20)))
    found = find_deadlock([view], _KNOWN)
    assert found is not None
    assert len(found.describe().splitlines()) == 1 + 8 + 1
    assert len(found.describe().encode()) < 2048


def test_a_rank_that_computes_ends_the_circle() -> None:
    assert _find(group(waiting(0, 1), row(1))) == set()
    assert _find(group(receiving(0, 1), receiving(1, 2), row(2))) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"caller": SEVERAL},
        {"backward_caller": SEVERAL},
        {"is_debugged": True},
        {"is_here": False},
        {"state": "left"},
        {"state": "dead"},
        {"arrived": 7},  # it has come: what is awaited is its data
    ],
    ids=str,
)
def test_a_rank_that_may_do_something_else_is_not_stuck(changes: dict[str, object]) -> None:
    a, b = _two_groups()
    assert _find(replace(a, rows=[a.rows[0], a.rows[1]._replace(**changes)]), b) == set()  # type: ignore[arg-type]


def test_a_process_that_was_not_looked_at_may_be_at_work_in_other_groups() -> None:
    assert _find(*_two_groups(), known=[800]) == set()


def test_calls_from_two_threads_in_two_groups_are_calls_from_several() -> None:
    a, b = _two_groups(waiting(0, 1)._replace(caller=31))
    assert _find(a, b) == {0, 1}
    assert _find(a, replace(b, rows=[b.rows[0]._replace(caller=32), b.rows[1]])) == set()


def test_an_asynchronous_operation_counts_if_the_caller_waits_for_it() -> None:
    asynchronous = waiting(0, 1, is_async=True)
    assert _find(*_two_groups(asynchronous)) == set()
    assert _find(*_two_groups(asynchronous._replace(awaits_work=True))) == {0, 1}


def test_a_rank_whose_asynchronous_operation_goes_on_is_not_stuck() -> None:
    """It waits in group b, but operation 7 of group c may need nobody, or somebody who comes."""
    at_work = group(row(0), row(1, arrived=7, entry=entry(is_async=True)), row(2), name="c")
    assert _find(*_two_groups(), at_work) == set()
    for_an_outsider = group(row(0), waiting(1, 2, is_async=True), row(2), name="c")
    assert _find(*_two_groups(), for_an_outsider) == {0, 1}, "it does not bring rank 1 to group a"


def test_a_short_timeout_is_waited_for() -> None:
    assert _find(*_two_groups(waiting(0, 1, may_do_more=True))) == set()


def test_the_two_ends_of_a_message_that_moves_are_no_deadlock() -> None:
    view = group(_sending(0, 1), receiving(1, 0))
    before = find_deadlock([view], _KNOWN)
    assert before is not None
    still = _later(view)
    assert _confirms([still], before)
    moved = replace(still, rows=[still.rows[0]._replace(mail_moves=1), still.rows[1]])
    assert not _confirms([moved], before)


def test_a_rank_must_have_looked_for_its_message_in_vain() -> None:
    view = group(receiving(0, 1), receiving(1, 0))
    before = find_deadlock([view], _KNOWN)
    assert before is not None
    later = _later(view)
    assert _confirms([later], before)
    for changes in ({"mail_looks": 1}, {"background_mail": 1, "background_looks": 1}):
        some = later.rows[1]._replace(**changes)  # type: ignore[arg-type]
        assert not _confirms([replace(later, rows=[later.rows[0], some])], before)


def test_the_next_operation_is_another_wait() -> None:
    before = find_deadlock(_two_groups(), _KNOWN)
    assert before is not None
    assert _confirms([_later(view) for view in _two_groups()], before)
    assert not _confirms([_later(view) for view in _two_groups(waiting(0, 1, ago_s=1.0))], before)


def _confirms(groups: Sequence[GroupView], before: Deadlock, elapsed_s: float = 0.5) -> bool:
    now = find_deadlock(groups, _KNOWN)
    return now is not None and now.confirms(before, elapsed_s)


def test_other_threads_get_much_more_time_to_make_the_call() -> None:
    before = find_deadlock(_two_groups(), _KNOWN)
    assert before is not None
    for other_threads, elapsed_s, is_certain in (
        ("none", 0.5, True),
        ("libraries", 0.5, False),
        ("libraries", PATIENCE_WITH_THREADS_S, True),
        ("program", 1000.0, False),
        ("unknown", 1000.0, False),
    ):
        assert _confirms([_later(view, other_threads) for view in _two_groups()], before, elapsed_s) is is_certain


def _later(view: GroupView, other_threads: Any = "none") -> GroupView:
    """The same, after each rank has looked in vain several times."""
    counts: dict[str, Any] = dict.fromkeys(("looks", "work_looks", "mail_looks", "background_looks"), 5)
    return replace(view, rows=[row._replace(other_threads=other_threads, **counts) for row in view.rows])


def test_a_rank_must_have_looked_for_its_peers_in_vain() -> None:
    """It may be stopped, or run a handler of a signal in the middle of its wait."""
    before = find_deadlock(_two_groups(), _KNOWN)
    assert before is not None
    first, second = (_later(view) for view in _two_groups())
    assert _confirms([first, second], before)
    stopped = replace(second, rows=[row._replace(looks=1) for row in second.rows])
    assert not _confirms([first, stopped], before)


def test_a_caller_of_asynchronous_operations_must_have_looked_for_them_in_vain() -> None:
    groups = _two_groups(waiting(0, 1, is_async=True)._replace(awaits_work=True))
    before = find_deadlock(groups, _KNOWN)
    assert before is not None
    first, second = (_later(view) for view in groups)
    assert _confirms([first, second], before)
    in_a_handler = replace(first, rows=[row._replace(work_looks=1) for row in first.rows])
    assert not _confirms([in_a_handler, second], before)


def test_a_message_that_timed_out_earlier_needs_no_look() -> None:
    ended = entry(1, "recv", root=1, end_ns=1)
    groups = _two_groups(waiting(0, 1)._replace(mail=ended))
    before = find_deadlock(groups, _KNOWN)
    assert before is not None
    later = [_later(view) for view in groups]
    later[0].rows[0] = later[0].rows[0]._replace(mail_looks=0)
    assert _confirms(later, before)


def test_a_rank_that_waits_before_it_begins_is_not_stuck() -> None:
    """The entry is of the operation before, which had perhaps another timeout."""
    ahead = row(0, arrived=7, finished=7, sleeps_for=1, entry=entry(7, end_ns=1))
    assert _find(*_two_groups(ahead)) == set()


def test_what_a_broken_group_still_shows_does_not_count() -> None:
    a, b = _two_groups()
    assert _find(replace(a, fault=fault("timeout")), b) == set()
    broken = group(row(0, arrived=9, entry=entry(9)), row(1), name="c", fault=fault("mismatch"))
    assert _find(a, b, broken) == {0, 1}


def test_a_message_that_ended_a_moment_ago_is_not_waited_for() -> None:
    ended = receiving(0, 1)
    assert ended.mail is not None
    ended = ended._replace(mail=ended.mail._replace(end_ns=ended.mail.start_ns + 1, seconds_ago=0.1))
    assert _find(group(ended, receiving(1, 0))) == set()

"""Because of whom an operation timed out, from literals: no ranks needed."""

from __future__ import annotations

from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.lateness import held_up_ranks, is_cut_off, late_ranks
from phalanx.engine.facts import RankFacts
from tests.diagnosis.test_explain import _entry, _facts, _row


def _in(rank: int, seq: int, *, sleeps_for: int = -1, operation: str = "all_reduce") -> RankFacts:
    """A rank that stands in a collective."""
    entry = _entry(seq=seq, operation=operation)
    return _row(rank, arrived=seq, finished=seq - 1, entry=entry, sleeps_for=sleeps_for)


def _away(rank: int, seq: int) -> RankFacts:
    """A rank that has left a collective and does something else."""
    return _row(rank, arrived=seq, finished=seq, entry=_entry(seq=seq))


def _with_mail(rank: int, seq: int, operation: str, peer: int) -> RankFacts:
    return _away(rank, seq)._replace(mail=_entry(operation=operation, root=peer, count=0))


def test_a_rank_that_waits_for_the_late_one_is_not_to_blame() -> None:
    rows = [_in(0, 6, sleeps_for=2, operation="reduce"), _in(1, 7, sleeps_for=0), _away(2, 5), _in(3, 7, sleeps_for=0)]
    assert late_ranks(_facts("timeout", reporter=1), rows) == [2]
    error = explain(_facts("timeout", reporter=1), Scene("default", 3, 4, rows, []))
    assert "rank 1 timed out, rank 2 did not come" in str(error)
    assert "held up  rank 0 (pid 810) is in reduce #6" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "late")


def test_a_rank_in_an_earlier_operation_names_whom_it_waits_for_itself() -> None:
    rows = [_in(0, 6, sleeps_for=2, operation="reduce"), _in(1, 7, sleeps_for=0), _away(2, 5)]
    facts = _facts("timeout", operation="reduce", reporter=1, seq=6, fault_seq=7)
    error = explain(facts, Scene("default", 0, 3, rows, []))
    assert "reduce #6" in str(error)
    assert "rank 1 timed out in operation #7, rank 2 did not come" in str(error)
    assert error.culprits == (2,)


def test_a_rank_in_a_later_operation_names_who_did_not_come_to_the_earlier_one() -> None:
    rows = [_in(0, 6, sleeps_for=2, operation="reduce"), _in(1, 7, sleeps_for=0), _away(2, 5)]
    facts = _facts("timeout", reporter=0, culprit=2, seq=7, fault_seq=6)
    error = explain(facts, Scene("default", 1, 3, rows, []))
    assert "the group broke in operation #6, where rank 0 timed out: rank 2 did not come" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "late")


def test_a_rank_that_waits_for_a_message_of_the_late_one_is_not_to_blame() -> None:
    rows = [_in(0, 7, sleeps_for=1), _with_mail(1, 6, "recv", 2), _away(2, 6)]
    assert late_ranks(_facts("timeout"), rows) == [2]


def test_ranks_that_wait_for_each_other_are_all_to_blame() -> None:
    rows = [_in(0, 7, sleeps_for=1), _with_mail(1, 6, "recv", 2), _with_mail(2, 6, "recv", 1), _away(3, 6)]
    assert late_ranks(_facts("timeout"), rows) == [1, 2, 3]
    assert held_up_ranks([1, 2, 3], rows) == set()


def test_a_receive_that_hears_of_a_timeout_names_its_sender() -> None:
    rows = [_in(0, 7, sleeps_for=1), _with_mail(1, 6, "recv", 2), _in(2, 7, sleeps_for=1)]
    facts = _facts("timeout", operation="recv", root=2, reporter=0, culprit=1, seq=0)
    error = explain(facts, Scene("default", 1, 3, rows, []))
    assert "rank 0 timed out, waiting for rank 2: rank 2 has not sent it" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "no sender")


def test_a_message_that_broke_the_group_is_told_to_all() -> None:
    rows = [_in(0, 8, sleeps_for=1), _with_mail(1, 7, "send", 2), _away(2, 7)]
    facts = _facts("timeout", operation="barrier", reporter=1, culprit=2, seq=8, fault_seq=7)
    assert is_cut_off(facts, rows)
    error = explain(facts, Scene("default", 0, 3, rows, []))
    assert "the group broke when rank 1 timed out in send to rank 2" in str(error)
    assert "missing  rank 2 (pid 812) left all_reduce #7" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "no receiver")


def test_sizes_that_do_not_fit_are_blamed_on_the_one_who_differs_from_most() -> None:
    entries = [_entry(operation="all_to_all", shape=(16,)) for _ in range(4)]
    entries[2] = _entry(operation="all_to_all", shape=(20,))
    facts = _facts("mismatch", operation="all_to_all", culprit=0, reporter=2, found_bytes=16, wanted_bytes=20)
    error = explain(facts, Scene("default", 1, 4, [_row(rank) for rank in range(4)], entries))
    assert "differs  rank 2 (pid 812) called all_to_all float32 (20,), me/train.py:61" in str(error)
    assert "sizes    rank 0 sends 16 bytes, rank 2 has room for 20" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "different size")


def test_a_rank_that_was_not_in_the_operation_hears_who_differed_there() -> None:
    entries = [None, _entry(), _entry(), _entry(dtype="int64"), _entry()]
    facts = _facts("mismatch", operation="reduce", culprit=1, reporter=3, seq=6, fault_seq=7)
    error = explain(facts, Scene("default", 0, 5, [_row(rank) for rank in range(5)], entries))
    assert "reduce #6" in str(error)
    assert "the group broke in operation #7, where ranks disagree on dtype" in str(error)
    assert (error.culprits, error.verdict) == ((3,), "different dtype")

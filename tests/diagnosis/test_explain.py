"""Every message from literals: no ranks needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import phalanx
from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.surroundings import ProcessState, Surroundings
from phalanx.engine.facts import Departure, EntryFacts, FaultKind, RankFacts, Trouble
from tests.diagnosis.observations import entry, row


def _facts(kind: FaultKind, **changes: Any) -> Trouble:
    return Trouble(
        kind,
        "all_reduce",
        seq=7,
        reporter=0,
        fault_seq=7,
        is_fatal=True,
        timeout_s=2.5,
        root=0,
        dtype="float32",
        location="/home/me/train.py:61",
        shape=(1024,),
    )._replace(**changes)


def _entry(**changes: Any) -> EntryFacts:
    return entry(**{"count": 1024, "ago_s": 1.5, "shape": (1024,), **changes})


def _row(rank: int, **changes: Any) -> RankFacts:
    return row(rank, **{"pid": 810 + rank, "arrived": 7, "entry": _entry(), **changes})


def _scene(rows: Sequence[RankFacts], entries: Sequence[EntryFacts | None], rank: int = 0) -> Scene:
    return Scene("default", rank, len(rows), rows, entries)


def test_a_mismatch_reads_as_in_the_style_guide() -> None:
    entries = [_entry(), _entry(), _entry(), _entry(shape=(1000,), count=1000)]
    error = explain(_facts("mismatch", culprit=3), _scene([_row(rank) for rank in range(4)], entries))
    assert str(error) == (
        'all_reduce #7 of group "default": ranks disagree on shape\n'
        "  here     rank 0 of 4 called all_reduce sum float32 (1024,), me/train.py:61\n"
        "  differs  rank 3 (pid 813) called all_reduce sum float32 (1000,), me/train.py:61\n"
        "  do       give every rank the same shape, e.g. drop the last partial batch (drop_last=True)"
    )
    assert type(error) is phalanx.MismatchError
    assert (error.group, error.rank, error.num_ranks, error.operation) == ("default", 0, 4, "all_reduce")
    assert (error.sequence, error.culprits) == (7, (3,))


def test_ranks_that_differ_alike_are_told_in_one_line() -> None:
    entries = [_entry(), _entry(op="max"), _entry(op="max"), _entry(op="max")]
    error = explain(_facts("mismatch"), _scene([_row(rank) for rank in range(4)], entries))
    assert "ranks disagree on reduce operation" in str(error)
    assert "differs  ranks 1-3 called all_reduce max float32 (1024,)" in str(error)
    assert isinstance(error, phalanx.MismatchError)
    assert (error.culprits, error.sides) == ((0,), ((0,), (1, 2, 3))), "the minority is to blame"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([{}, {"op": "max"}, None, None], "the calls of only 2 of 4 ranks are known"),
        ([{}, {}, {"op": "max"}, None], "the calls of only 3 of 4 ranks are known"),
        ([{}, {}, {"op": "max"}, {"op": "max"}], "no call was made by more than half of the ranks"),
    ],
)
def test_nobody_is_to_blame_without_more_than_half_of_all_ranks(changes: list[Any], why: str) -> None:
    entries = [None if change is None else _entry(**change) for change in changes]
    error = explain(_facts("mismatch"), _scene([_row(rank) for rank in range(4)], entries))
    assert f"\n  unknown  who is right: {why}\n" in str(error)
    assert error.culprits == ()


def test_shapes_with_as_many_elements_are_the_same_call() -> None:
    entries = [_entry(shape=(2, 512)), _entry(shape=(512, 2)), _entry(), _entry(count=7, shape=(7,))]
    error = explain(_facts("mismatch"), _scene([_row(rank) for rank in range(4)], entries))
    assert error.culprits == (3,)
    assert str(error).count("differs") == 1


@pytest.mark.parametrize(
    ("own", "sides"),
    [
        ({}, ((0,), (1, 2))),
        ({"shape": (7,)}, ((0,), (1,), (2,))),
        ({"dtype": "int64"}, ((0,), (1,), (2,))),
        ({"operation": "broadcast", "root": 3}, ((0, 2), (1,))),
        ({"operation": "broadcast", "root": 1}, ((0,), (1,), (2,))),
        ({"operation": "barrier", "seq": 6}, ((0,), (1,))),  # it never came to that operation
    ],
)
def test_a_rank_that_comes_when_the_group_is_broken_knows_its_side(own: dict[str, Any], sides: object) -> None:
    entries = [_entry(operation="broadcast", root=3), _entry(), None, None]
    error = explain(_facts("mismatch", **own), _scene([_row(rank) for rank in range(4)], entries, rank=2))
    assert isinstance(error, phalanx.MismatchError)
    assert (error.sides, error.culprits) == (sides, ())


def test_a_late_rank_does_not_know_its_side_if_calls_differ_only_in_how_they_reduce() -> None:
    entries = [_entry(), _entry(op="max"), None, None]
    error = explain(_facts("mismatch"), _scene([_row(rank) for rank in range(4)], entries, rank=2))
    assert isinstance(error, phalanx.MismatchError)
    assert error.sides == ((0,), (1,))


def test_different_operations_come_before_different_shapes() -> None:
    entries = [_entry(), _entry(operation="barrier", shape=(), count=0, dtype="uint8")]
    error = explain(_facts("mismatch"), _scene([_row(0), _row(1)], entries))
    assert "ranks disagree on operation" in str(error)
    assert "differs  rank 1 (pid 811) called barrier, me/train.py:61" in str(error)


def test_threads_have_no_process_number() -> None:
    entries = [_entry(), _entry(dtype="int64")]
    error = explain(_facts("mismatch"), _scene([_row(0, is_thread=True), _row(1, is_thread=True)], entries))
    assert "ranks disagree on dtype" in str(error)
    assert "differs  rank 1 called all_reduce sum int64" in str(error)


def test_split_sizes_that_do_not_fit_name_both_sides() -> None:
    facts = _facts("mismatch", operation="all_to_all", culprit=1, reporter=0, found_bytes=8, wanted_bytes=12)
    error = explain(facts, _scene([_row(0), _row(1)], [None, None]))
    assert "ranks disagree on split sizes" in str(error)
    assert "differs  rank 1 (pid 811) sends 8 bytes, rank 0 has room for 12" in str(error)
    assert isinstance(error, phalanx.MismatchError)
    assert (error.culprits, error.sides) == ((), ((0,), (1,))), "either of them may be wrong"


def test_ranks_that_exchange_different_shapes_are_on_different_sides() -> None:
    entries = [_entry(operation="all_to_all", count=0, shape=(16 + 4 * (rank == 1),)) for rank in range(3)]
    error = explain(
        _facts("mismatch", operation="all_to_all", culprit=1), _scene([_row(rank) for rank in range(3)], entries)
    )
    assert (error.culprits, error.verdict) == ((1,), "different shape")


def test_a_message_that_does_not_fit_is_told_on_both_sides() -> None:
    scene = _scene([_row(0), _row(1)], [])
    facts = _facts("mismatch", operation="recv", culprit=1, found_bytes=400, wanted_bytes=4096, seq=0, fault_seq=0)
    received = explain(facts, scene)
    assert str(received) == (
        'recv of group "default": the message and the buffer differ (rank 1)\n'
        "  here     rank 0 of 2 has float32 (1024,)\n"
        "  differs  rank 1 (pid 811) sent 400 bytes of another size or dtype\n"
        "  do       receive into a tensor of the sent shape and dtype"
    )
    assert received.sequence is None
    sent = explain(_facts("mismatch", operation="send", culprit=1, seq=0, fault_seq=0), scene)
    assert "rank 1 (pid 811) has a buffer of another size or dtype" in str(sent)


def test_a_timeout_tells_who_is_missing_and_where() -> None:
    rows = [_row(0), _row(1, arrived=6, finished=6, entry=_entry(seq=6, operation="broadcast"))]
    error = explain(_facts("timeout", culprit=1), _scene(rows, [_entry(), None]))
    assert type(error) is phalanx.OperationTimeoutError
    assert str(error) == (
        'all_reduce #7 of group "default": timed out after 2.5 s, rank 1 did not come\n'
        "  here     rank 0 of 2 called all_reduce sum float32 (1024,), me/train.py:61\n"
        "  missing  rank 1 (pid 811) left broadcast #6 root 0 float32 (1024,), me/train.py:61, begun 1.5 s ago\n"
        "  do       find out why it is late, or give a longer timeout (timeout_s)"
    )
    assert error.culprits == (1,)


def test_the_whereabouts_of_missing_ranks_are_told() -> None:
    mail = _entry(operation="recv", root=2, count=0)
    rows = [
        _row(0),
        _row(1, state="absent", arrived=0),
        _row(2, arrived=6, mail=mail),
        _row(3, arrived=6, mail=mail._replace(operation="send", root=0)),
        _row(4, arrived=0, entry=None),
        _row(5, arrived=6, finished=5, entry=_entry(seq=6)),
        _row(6, arrived=6, mail=mail._replace(root=-1)),
    ]
    text = str(explain(_facts("timeout"), _scene(rows, [_entry()] + [None] * 6)))
    assert "ranks 1-6 did not come" in text
    assert "rank 1 (pid 811) has not joined the group" in text
    assert "rank 2 (pid 812) waits in recv from rank 2, me/train.py:61" in text
    assert "rank 3 (pid 813) waits in send to rank 0, me/train.py:61" in text
    assert "rank 4 (pid 814) has not called anything in this group yet" in text
    assert "rank 5 (pid 815) is in all_reduce #6" in text
    assert "rank 6 (pid 816) waits in recv from any rank" in text


def test_another_rank_s_timeout_is_told_as_such() -> None:
    rows = [_row(0), _row(1, arrived=6), _row(2)]
    error = explain(_facts("timeout", reporter=2), _scene(rows, [_entry(), None, _entry()]))
    assert "rank 2 timed out, rank 1 did not come" in str(error)


def test_a_group_that_broke_earlier_says_where() -> None:
    scene = _scene([_row(0), _row(1), _row(2)], [])
    late = explain(_facts("timeout", reporter=2, culprit=1, seq=9), scene)
    assert type(late) is phalanx.OperationTimeoutError
    assert str(late).splitlines()[0] == (
        'all_reduce #9 of group "default": the group broke in operation #7, where rank 2 timed out: rank 1 did not come'
    )
    assert late.sequence == 9
    different = explain(_facts("mismatch", reporter=1, seq=8), scene)
    assert type(different) is phalanx.MismatchError
    assert "the group broke in operation #7, where ranks called different things (noticed by rank 1)" in str(different)


def test_a_wait_that_was_too_short_blames_nobody() -> None:
    error = explain(_facts("timeout", awaited="work", timeout_s=0.05), _scene([_row(0), _row(1)], []))
    assert "timed out after 50 ms, the operation did not end" in str(error)
    assert error.culprits == ()


def test_a_message_that_does_not_come_names_the_sender() -> None:
    scene = _scene([_row(0), _row(1, arrived=6, finished=6, entry=_entry(seq=6))], [])
    error = explain(_facts("timeout", operation="recv", culprit=1, root=1, seq=0, fault_seq=0), scene)
    assert 'recv of group "default": timed out after 2.5 s, waiting for rank 1' in str(error)
    assert "rank 1 (pid 811) left all_reduce #6" in str(error)
    anybody = explain(_facts("timeout", operation="recv", culprit=-1, root=-1, seq=0, fault_seq=0), scene)
    assert "waiting for any rank" in str(anybody)
    assert anybody.culprits == ()


def test_a_dead_peer_is_named_with_its_signal_or_code() -> None:
    for status, signal_number, exit_code, text in (
        (265, 9, None, "was killed by SIGKILL (signal 9)"),
        (3, None, 3, "ended with exit code 3"),
        (-1, None, None, "died"),
    ):
        rows = [_row(0), _row(1, state="dead", exit_status=status, arrived=6, finished=6)]
        error = explain(_facts("peer_died", culprit=1), _scene(rows, [_entry(), None]))
        assert isinstance(error, phalanx.PeerDiedError)
        assert (error.signal, error.exit_code, error.culprits) == (signal_number, exit_code, (1,))
        assert str(error).splitlines()[0] == f'all_reduce #7 of group "default": rank 1 (pid 811) {text}'
        assert "go on without it with group.shrink()" in str(error)


def test_a_peer_that_left_is_named() -> None:
    error = explain(_facts("peer_left", culprit=1), _scene([_row(0), _row(1)], [_entry(), None]))
    assert type(error) is phalanx.PeerLeftError
    assert "rank 1 (pid 811) closed the group" in str(error)


@pytest.mark.parametrize(
    ("departure", "states", "words", "verdict"),
    [
        ("closed", {}, "closed the group", "left"),
        ("closed", {1: "gone"}, "closed the group", "left"),
        ("ended", {}, "has reached the end of its program", "ended"),
        ("dropped", {}, "no longer has the group, because its program dropped the last reference to it", "left"),
        ("dropped", {1: "gone"}, "has reached the end of its program", "ended"),
    ],
)
def test_why_a_peer_left_is_told(
    departure: Departure, states: dict[int, ProcessState], words: str, verdict: str
) -> None:
    rows = [_row(0), _row(1, state="left", departure=departure)]
    scene = replace(_scene(rows, [_entry(), None]), around=Surroundings(states=states))
    error = explain(_facts("peer_left", culprit=1), scene)
    assert isinstance(error, phalanx.PeerLeftError)
    assert str(error).splitlines()[0].endswith(f": rank 1 (pid 811) {words}")
    assert (error.verdict, error.culprits, error.pid) == (verdict, (1,), 811)


def test_a_peer_s_failure_tells_its_first_line() -> None:
    scene = _scene([_row(0), _row(1)], [_entry(), None])
    raised = explain(_facts("peer_failed", culprit=1, text="LookupError: lost\nmore"), scene)
    assert type(raised) is phalanx.PeerFailedError
    assert str(raised).splitlines()[0].endswith("rank 1 (pid 811) raised: LookupError: lost")
    refused = explain(_facts("peer_failed", culprit=1, text="bad tensor", is_fatal=False), scene)
    assert "had its arguments refused: bad tensor" in str(refused)


def test_a_failure_told_by_the_launcher_has_no_rank() -> None:
    """The culprit is -1 when a sub-group hears it from the world that spawn() started."""
    error = explain(
        _facts("peer_failed", culprit=-1, reporter=-1, seq=0, fault_seq=0, text="LookupError: lost"),
        _scene([_row(0)], []),
    )
    assert type(error) is phalanx.PeerFailedError
    assert "rank -1" not in str(error)
    assert -1 not in error.culprits


def test_what_another_host_is_to_blame_for_is_told_in_its_words() -> None:
    error = explain(
        _facts("peer_failed", culprit=-1, reporter=-1, text="elsewhere: host 1 (node1, ranks 2-3) has been silent"),
        _scene([_row(0)], []),
    )
    assert type(error) is phalanx.PeerDiedError
    assert str(error).partition(": ")[2].startswith("host 1 (node1, ranks 2-3) has been silent\n")
    assert error.verdict == "died"


def test_ranks_of_a_job_are_culprits_only_in_a_group_of_all_of_them() -> None:
    text = "elsewhere: rank 1 of 2 on host 1 (node1, pid 5) was killed by SIGKILL"
    for rows, culprits in (([_row(0), _row(1)], (1,)), ([_row(0), _row(1), _row(2)], ())):
        error = explain(_facts("peer_failed", culprit=-1, reporter=-1, text=text), _scene(rows, []))
        assert (type(error), error.verdict, error.culprits) == (phalanx.PeerDiedError, "died", culprits)


def test_abort_tells_who_and_why() -> None:
    scene = _scene([_row(0), _row(1)], [_entry(), None])
    error = explain(_facts("aborted", culprit=1, text="bad data"), scene)
    assert type(error) is phalanx.AbortedError
    assert "rank 1 aborted the group: bad data" in str(error)
    assert "rank 1 was interrupted" in str(explain(_facts("interrupted", culprit=1), scene))


def test_usage_and_closed_errors_need_no_scene() -> None:
    scene = Scene("default", 2, 4)
    usage = explain(Trouble("usage", "broadcast", seq=3, text="rank 9 is outside"), scene)
    assert str(usage) == 'broadcast #3 of group "default": rank 9 is outside\n  here     rank 2 of 4'
    closed = explain(Trouble("closed", "barrier"), scene)
    assert type(closed) is phalanx.ClosedError
    assert "the group is closed" in str(closed)
    forked = explain(Trouble("forked", "barrier"), scene)
    assert type(forked) is phalanx.ClosedError
    assert "forked from the rank" in str(forked)


def test_unknown_trouble_is_a_bug_of_ours() -> None:
    assert type(explain(_facts("unknown"), Scene("default", 0, 1))) is phalanx.InternalError

from __future__ import annotations

import pytest

from phalanx.diagnosis.blame_elsewhere import find_blame, without_agreeing


@pytest.mark.parametrize(
    ("kind", "text", "culprits", "verdict"),
    [
        ("aborted", "rank 2 of 4 on host 1 (node1, pid 5) was killed by SIGKILL (signal 9)", (2,), "died"),
        ("aborted", "rank 2 of 4 on host 1 (node1, pid 5) ended with exit code 3", (2,), "died"),
        ("peer_died", "host 1: rank 2 (pid 5) was killed by SIGKILL (signal 9)", (2,), "died"),
        ("peer_died", "the connection to rank 4 on host 2 was lost: Connection closed by peer", (), "died"),
        ("aborted", "host 1 (node1, ranks 2-3) has been silent for 3 s: it is down, or the network is", (2, 3), "died"),
        ("aborted", "host 2 (node2, rank 4): its launcher (pid 7) has died", (4,), "died"),
        ("peer_failed", "host 1: rank 2 (pid 19) raised: ValueError: bad batch (train.py:7)", (2,), "raised"),
        ("aborted", "rank 12 of 16 on host 1 (node1) failed: ValueError: bad batch (train.py:7)", (12,), "raised"),
        (
            "aborted",
            'rank 3 of 4 on host 1 (node1) failed: PeerLeftError: barrier #3 of group "world": rank 2 (pid 9) closed '
            "the group (demo/train.py:7)",
            (2,),
            "left",
        ),
        (
            "aborted",
            'rank 3 of 4 on host 1 failed: OperationTimeoutError: barrier #3 of group "0": timed out after 2 s, rank 2 '
            "did not come (train.py:7)",
            (2,),
            "late",
        ),
        (
            "aborted",
            'rank 3 of 4 on host 1 failed: PeerLeftError: barrier #3 of group "pair": rank 0 (pid 9) closed the group',
            (3,),
            "raised",
        ),
        ("timeout", "rank 1 timed out in recv: rank 2 on host 1 has not sent it", (2,), "no sender"),
        ("timeout", "rank 1 timed out in send: rank 2 on host 1 has not received it", (2,), "no receiver"),
        (
            "aborted",
            'rank 1 of 4 on host 0 failed: OperationTimeoutError: recv of group "world": timed out after 2 s, waiting '
            "for rank 2 on host 1: it has not sent it (train.py:7)",
            (2,),
            "no sender",
        ),
        ("peer_failed", "rank 1 on host 0 had its arguments refused: tensor is sparse", (1,), "refused"),
        ("peer_left", "rank 2 on host 1 closed the group", (2,), "left"),
        ("peer_left", "host 1: rank 3 (pid 33) closed the group", (3,), "left"),
        ("peer_left", "rank 2 on host 1 has reached the end of its program", (2,), "ended"),
        ("timeout", "timed out after 2 s, host 1 (ranks 2, 3) did not come", (2, 3), "late"),
        ("timeout", "host 1: rank 3 did not come", (3,), "late"),
        ("timeout", "host 1: ranks 2-3, 5 did not come", (2, 3, 5), "late"),
        ("aborted", "something else", (), "elsewhere"),
    ],
)
def test_the_culprits_and_the_verdict_are_those_of_the_text(
    kind: str, text: str, culprits: tuple[int, ...], verdict: str
) -> None:
    assert find_blame(kind, text, []) == (culprits, verdict)


def test_of_ranks_that_are_late_those_with_a_line_count() -> None:
    lines = ["  missing  rank 2 (pid 5) on host 1 left barrier #2", "           is now at train.py:7"]
    headline = "timed out after 2 s, host 1 (ranks 2, 3) did not come"
    assert find_blame("timeout", headline, lines) == ((2,), "late")


_LINES = [
    "  differs  rank 2 (pid 5) called all_reduce max float32 (16,), train.py:7",
    "  differs  rank 3 (pid 6) called all_reduce sum float32 (16,), train.py:7",
    "  unknown  who is right: the calls of only 2 of 4 ranks are known",
]


def test_ranks_that_agree_with_this_one_are_no_culprits() -> None:
    lines = without_agreeing("all_reduce sum float32 (16,)", _LINES)
    assert lines == _LINES[:1]
    blame = find_blame("mismatch", "host 1: ranks disagree on reduce operation", lines)
    assert blame == ((2,), "different reduce operation")


def test_it_stays_unknown_who_is_right_if_nobody_agrees_or_all_do() -> None:
    for call in ("barrier", "all_reduce"):
        assert without_agreeing(call, _LINES) == _LINES
    assert find_blame("mismatch", "host 1: ranks disagree on operation", _LINES) == ((), "different operation")


_RAISED = (
    'host 1: rank 2 (pid 5) raised: OperationTimeoutError: recv of group "{}": timed out after 2 s, waiting for '
    "rank {}: it has not sent it"
)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timeout", "rank 2 timed out in recv: rank {} on host 0 has not sent it"),
        ("peer_failed", _RAISED.format("pair", "{} on host 0")),
    ],
)
def test_a_rank_for_whose_message_another_one_waits_is_held_up_by_that_one(kind: str, text: str) -> None:
    assert find_blame(kind, text.format(1), [], group="pair", own=1) == ((2,), "late")
    assert find_blame(kind, text.format(1), [], group="pair", own=0) == ((1,), "no sender")


def test_numbers_of_another_group_are_not_taken_for_those_of_this_one() -> None:
    assert find_blame("peer_failed", _RAISED.format("pair", 1), [], group="world") == ((2,), "raised")

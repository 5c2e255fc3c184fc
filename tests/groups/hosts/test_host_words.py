"""What a rank says of other hosts, from what their launchers answer."""

from __future__ import annotations

import time

from phalanx.engine.facts import EntryFacts, FaultFacts, RankFacts, Trouble
from phalanx.errors import MismatchError, OperationTimeoutError
from phalanx.groups.host_words import ELSEWHERE, HostWords
from phalanx.groups.hosts import HostTable
from phalanx.launch.agent_line import HostRows

_WORDS = HostWords("world", 0, HostTable(((0, 1), (2, 3))))


def _row(rank: int, arrived: int, state: str = "present") -> RankFacts:
    return RankFacts(rank, 10 + rank, 0, 0, False, False, False, state, -1, arrived, arrived, -1, None, None, None)  # type: ignore[arg-type]


def far_number(rank: int) -> int:
    """Return how the engine writes a rank of another host: see native/core/far_peer.hpp."""
    return -16 - rank


def _answers(*there: RankFacts, fault: FaultFacts | None = None) -> list[HostRows]:
    """Return what two hosts answer; each also has a world of its own, which nobody uses."""
    places = {0: "demo/loader.py:7 in read_batch"}
    unused = [HostRows(host, [_row(0, 0), _row(1, 0)], places) for host in (0, 1)]
    here = HostRows(0, [_row(0, 3), _row(1, 3)])
    return [unused[0], here, unused[1], HostRows(1, list(there), places, fault)]


def test_a_rank_of_another_host_that_has_not_come_is_named_with_its_place() -> None:
    text = _WORDS.describe_late(_answers(_row(0, 2), _row(1, 3)), 3)
    headline, missing, place = text.splitlines()
    assert headline == "rank 2 did not come"
    assert missing.startswith("  missing  rank 2 (pid 10) on host 1 ")
    assert place == "           is now at demo/loader.py:7 in read_batch"
    error = _WORDS.explain_elsewhere(
        Trouble("timeout", "barrier", timeout_s=2, seq=3, culprit=ELSEWHERE, text=text), None
    )
    assert isinstance(error, OperationTimeoutError)
    assert (error.culprits, error.verdict) == ((2,), "late")
    assert 'barrier #3 of group "world": timed out after 2 s, rank 2 did not come\n' in str(error)


def test_nobody_is_late_if_all_have_come_or_a_host_has_not_answered() -> None:
    assert _WORDS.describe_late(_answers(_row(0, 3), _row(1, 4)), 3) == ""
    assert _WORDS.describe_late(_answers(_row(0, 2), _row(1, 2))[:2], 3) == ""
    assert _WORDS.describe_late([], 3) == ""


def test_a_rank_that_has_closed_the_group_is_named() -> None:
    assert _WORDS.describe_left(_answers(_row(0, 3), _row(1, 3, "left"))) == "rank 3 on host 1 closed the group"
    noticed = FaultFacts("peer_left", 0, 1, 3, "", "ranks", 0, 0)
    both = [_row(0, 3, "left"), _row(1, 3, "left")]
    assert _WORDS.describe_left(_answers(*both, fault=noticed)) == "rank 2 on host 1 closed the group"


def test_nobody_has_closed_the_group_if_something_worse_has_happened() -> None:
    assert _WORDS.describe_left(_answers(_row(0, 3), _row(1, 3))) == ""
    assert _WORDS.describe_left(_answers(_row(0, 3, "dead"), _row(1, 3, "left"))) == ""
    raised = FaultFacts("peer_failed", 0, -1, 3, "ValueError", "ranks", 0, 0)
    assert _WORDS.describe_left(_answers(_row(0, 3, "left"), _row(1, 3, "left"), fault=raised)) == ""


def test_ranks_that_have_closed_the_group_or_ended_are_gone() -> None:
    assert _WORDS.find_gone(_answers(_row(0, 3, "dead"), _row(1, 3, "left"))) == [2, 3]
    assert _WORDS.find_gone(_answers(_row(0, 0), _row(1, 0, "left"))) == [3]
    assert _WORDS.find_gone([]) == []


def test_of_two_ranks_that_disagree_on_split_sizes_it_is_unknown_who_is_right() -> None:
    text = "rank 2 on host 1 sends 80 bytes, rank 0 has room for 64"
    error = _WORDS.explain_elsewhere(Trouble("mismatch", "all_to_all", seq=3, culprit=ELSEWHERE, text=text), None)
    assert isinstance(error, MismatchError)
    assert (error.culprits, error.verdict) == ((), "different size")
    assert f"  differs  {text}\n  unknown  who is right: rank 2 or rank 0\n" in str(error)


def _late_message(operation: str) -> Trouble:
    return Trouble(
        "timeout", operation, root=far_number(2), dtype="float32", shape=(4,), timeout_s=2, culprit=ELSEWHERE
    )


def test_a_rank_of_another_host_that_does_not_send_is_named_with_its_place() -> None:
    for arrived in (0, 3):  # it may have called nothing yet
        error = _WORDS.explain_message(_late_message("recv"), _answers(_row(0, arrived), _row(1, arrived)))
        assert (error.culprits, error.verdict) == ((2,), "no sender")
        missing, place = str(error).splitlines()[2:4]
        assert missing.startswith("  missing  rank 2 (pid 10) on host 1 ")
        assert place == "           is now at demo/loader.py:7 in read_batch"
    error = _WORDS.explain_message(_late_message("send"), [])
    assert (error.culprits, error.verdict) == ((2,), "no receiver")
    assert "missing" not in str(error)


def test_a_host_on_which_ranks_only_send_is_part_of_the_group() -> None:
    answers = _answers(_row(0, 0)._replace(messages=1), _row(1, 0))
    assert _WORDS.describe_late(answers, 1).splitlines()[0] == "ranks 2-3 did not come"


def test_a_late_rank_waits_for_a_message_of_a_rank_with_the_numbers_of_the_group() -> None:
    mail = EntryFacts(0, "recv", "float32", "cpu", "", 1, -1, 4, 0, "train.py:5", False, time.monotonic_ns(), 0, (4,))
    text = _WORDS.describe_late(_answers(_row(0, 2)._replace(mail=mail), _row(1, 2)), 3)
    assert "  missing  rank 2 (pid 10) on host 1 waits in recv from rank 3" in text


def test_a_message_of_another_size_has_the_words_of_one_host() -> None:
    facts = Trouble("mismatch", "recv", root=far_number(2), dtype="float32", shape=(2,), culprit=ELSEWHERE,
                    text="rank 2 on host 1 called send float32 (4,), train.py:5", found_bytes=16)  # fmt: skip
    error = _WORDS.explain_message(facts)
    assert isinstance(error, MismatchError)
    assert "  differs  rank 2 on host 1 called send float32 (4,), train.py:5\n" in str(error)
    assert "sent 16 bytes of another size or dtype" in str(error)
    assert "receive into a tensor of the sent shape and dtype" in str(error)
    assert (error.culprits, error.verdict) == ((2,), "different message")

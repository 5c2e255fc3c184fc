"""Which rank or host is to blame, decided from what hosts say and how long they were silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.errors import UsageError
from phalanx.launch.hosts.blame import AttemptVerdict, AwakeClock, Judge, describe_lost_launcher, describe_silence
from tests.launch.hosts.test_cards import card

CARDS = [card("node0", num_hosts=3), card("node1", num_hosts=3), card("node2", num_hosts=3)]
KILLED = AttemptVerdict("rank 3 was killed", 1, 137, 3)
FREED = AttemptVerdict("rank 0 lost a connection", 0, 1, 0, is_consequence=True)


def test_a_rank_that_is_to_blame_is_the_verdict_at_once() -> None:
    judge = Judge()
    judge.hear(KILLED, 10.0)
    assert judge.decide(10.0) == KILLED
    assert judge.decide(11.0) is None


def test_a_consequence_waits_for_its_cause() -> None:
    judge = Judge()
    judge.hear(FREED, 10.0)
    assert judge.decide(10.4) is None
    judge.hear(KILLED, 10.45)
    assert judge.decide(10.45) == KILLED


def test_a_consequence_without_a_cause_is_the_verdict_after_half_a_second() -> None:
    judge = Judge()
    judge.hear(FREED, 10.0)
    assert judge.due_at == 10.5
    assert judge.decide(10.5) == FREED


def test_the_verdict_never_changes() -> None:
    judge = Judge()
    judge.hear(KILLED, 10.0)
    judge.decide(10.0)
    judge.hear(replace(KILLED, text="rank 4 was killed"), 10.1)
    assert judge.decide(12.0) is None
    assert judge.verdict == KILLED


def test_a_verdict_survives_json_and_what_is_none_is_refused() -> None:
    assert AttemptVerdict.from_json(KILLED.to_json()) == KILLED
    for value in (None, {}, {**KILLED.to_json(), "host": "1"}, {**KILLED.to_json(), "is_lost": 1}):
        with pytest.raises(UsageError, match="no verdict"):
            AttemptVerdict.from_json(value)


def test_silence_is_described_with_hosts_and_ranks() -> None:
    one = describe_silence(CARDS, [1], 0, is_alone=False)
    assert one.text == (
        "host 1 (node1, ranks 2-3) has been silent for 3 s: it is down, or the network between it and host 0 (node0) is"
    )
    assert one.is_lost
    assert not one.may_restart
    both = describe_silence(CARDS, [1, 2], 0, is_alone=True)
    assert "host 1 (node1, ranks 2-3) and host 2 (node2, ranks 4-5) have been silent" in both.text
    assert both.text.endswith("or host 0 (node0) is cut off")


def test_a_lost_launcher_is_described() -> None:
    assert describe_lost_launcher(CARDS, 2).text == "host 2 (node2, ranks 4-5): its launcher (pid 7) has died"


def test_the_clock_stands_still_while_the_process_does() -> None:
    moment = [100.0]
    clock = AwakeClock(lambda: moment[0])
    for _ in range(8):
        moment[0] += 0.25
        clock.tick()
    before = clock.tick()
    moment[0] += 60.0  # stopped
    assert clock.tick() - before == pytest.approx(0.25)
    moment[0] += 0.25
    assert clock.tick() - before == pytest.approx(0.5)

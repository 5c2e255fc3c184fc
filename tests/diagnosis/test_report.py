"""The report from literals."""

from __future__ import annotations

import pytest

from phalanx.diagnosis import findings
from phalanx.diagnosis.findings import find
from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.report import render
from phalanx.diagnosis.stacks import ThreadStack, parse_stacks
from phalanx.diagnosis.summary import summarize
from phalanx.diagnosis.views import JobView
from phalanx.engine.facts import FaultFacts, RankRecords
from tests.diagnosis.observations import (
    NOTHING,
    NOW_NS,
    entry,
    fault,
    group,
    observation,
    receiving,
    row,
    stacks,
    waiting,
)


def _summary(seen: Observation) -> list[str]:
    return summarize(find(seen))


def test_a_late_rank_is_named_with_those_it_holds_up() -> None:
    seen = observation(group(waiting(0, 1), row(1), waiting(2, 1)))
    seen.processes[1].stacks = stacks(("/usr/lib/python3.11/socket.py", 9, "recv"), ("/home/me/data.py", 12, "load"))
    assert _summary(seen) == [
        "rank 1 holds up ranks 0, 2, in all_reduce #7, me/train.py:61, for 5 s; it is at me/data.py:12 in load"
    ]


def test_the_whole_report_reads_so() -> None:
    past = RankRecords([entry(6, "barrier", end_ns=NOW_NS - 4_999_998_000), entry(7)], [])
    seen = observation(
        group(waiting(0, 1), row(1), records=[past, NOTHING]),
        job=JobView("night", pid=700, num_ranks=2, started_unix=940.0, pids=[800, 801]),
        reason="a rank failed",
        notes=["something was not seen"],
    )
    seen.processes[0].stacks = stacks(("/home/me/train.py", 61, "step"), ("/home/me/train.py", 80, "<module>"))
    assert render(seen).splitlines() == [
        'job "night" (pid 700) on box, 2 ranks, for 60 s: a rank failed',
        "  rank 1 holds up rank 0, in all_reduce #7, me/train.py:61, for 5 s",
        "",
        'group "world", ranks 0-1',
        "  rank 0   pid 800      waits 5 s in all_reduce #7, me/train.py:61, for rank 1",
        "  rank 1   pid 801      runs; its last: all_reduce #6, me/train.py:61, begun 5 s ago",
        "",
        "rank 0 (pid 800), sleeping, 1.0 MiB",
        "    me/train.py:61 in step",
        "    me/train.py:80 in <module>",
        "",
        "rank 1 (pid 801), sleeping, 1.0 MiB",
        "  it can't show its stack: it did not answer",
        "",
        'last operations of rank 0 in group "world"',
        "       5 s ago  barrier #6, me/train.py:61  took 2 us",
        "       5 s ago  all_reduce #7, me/train.py:61  float32 (4,) 16 B  did not end",
        "note: something was not seen",
    ]
    assert "last operations" not in render(seen, is_full=False)


def test_other_threads_are_shown_if_they_run_the_program_and_counted_if_not() -> None:
    seen = observation(group(row(0), row(1, pid=800)))
    python = "/usr/lib/python3.11/threading.py"
    seen.processes[0].stacks = (
        stacks((python, 7, "get"), (python, 1, "run"), is_main=False, ident=70)
        + stacks((python, 7, "wait"), ("/home/me/load.py", 3, "load"), (python, 1, "run"), is_main=False, ident=71)
        + stacks((python, 7, "wait"), ("/home/me/load.py", 3, "load"), (python, 1, "run"), is_main=False, ident=72)
        + stacks((python, 5, "join"), ("/home/me/train.py", 61, "step"), ident=800)
    )
    text = render(seen)
    assert text[text.index("  thread") :].splitlines()[:4] == [
        "  threads 71, 72",
        "    me/load.py:3 in load, which called:",
        "      python3.11/threading.py:7 in wait",
        "  ... 1 more thread that runs nothing of the program",
    ]
    assert "    me/train.py:61 in step, which called:\n      python3.11/threading.py:5 in join\n  threads" in text


def test_threads_that_are_ranks_are_named_with_their_ranks() -> None:
    seen = observation(group(*(row(rank, pid=800, is_thread=True, thread=70 + rank) for rank in range(3))))
    waiting_in = [("/usr/lib/python3.11/threading.py", 7, "wait")]
    seen.processes[0].stacks = (
        stacks(*waiting_in, ident=800)
        + stacks(*waiting_in, is_main=False, ident=70)
        + stacks(*waiting_in, is_main=False, ident=71)
        + stacks(("/home/me/train.py", 61, "step"), is_main=False, ident=72)
    )
    assert render(seen).splitlines()[-6:] == [
        "ranks 0-2 (pid 800), sleeping, 1.0 MiB",
        "    python3.11/threading.py:7 in wait",
        "  threads 70, 71, ranks 0-1",
        "    python3.11/threading.py:7 in wait",
        "  thread 72, rank 2",
        "    me/train.py:61 in step",
    ]


def test_short_waits_are_not_worth_a_word() -> None:
    seen = observation(group(waiting(0, 1, ago_s=0.25), row(1)))
    assert _summary(seen) == ["no rank has waited longer than 250 ms"]
    assert _summary(observation(group(row(0), row(1)))) == ["no rank waits in an operation of phalanx"]
    assert _summary(observation()) == [
        "no rank is in a group of phalanx, so it is not known which rank waits for which"
    ]


def test_two_groups_of_one_name_are_not_mixed_up() -> None:
    seen = observation(
        group(row(0, entry=entry(6, ago_s=90, end_ns=NOW_NS)), row(1)), group(waiting(0, 1, ago_s=0.1), row(1))
    )
    assert _summary(seen) == ["no rank has waited longer than 100 ms"]


def test_a_deadlock_is_shown_as_a_circle() -> None:
    first = group(waiting(0, 1), row(1), name="first")
    second = group(row(0), waiting(1, 0), name="second")
    assert _summary(observation(first, second)) == [
        "deadlock: these ranks wait for each other, and none can go on",
        'rank 0 waits for rank 1 in all_reduce #7, me/train.py:61, group "first"',
        'rank 1 waits for rank 0 in all_reduce #7, me/train.py:61, group "second"',
    ]


def test_a_circle_through_asynchronous_operations_is_only_a_guess() -> None:
    first = group(waiting(0, 1), row(1), name="first")
    second = group(row(0), waiting(1, 0, is_async=True), name="second")
    summary = _summary(observation(first, second))
    assert summary[0].startswith("perhaps a deadlock: ")
    assert summary[-1].startswith("rank 1 holds up rank 0"), "it may be busy with something else"


def test_a_rank_with_asynchronous_work_under_way_can_be_the_late_one() -> None:
    world = group(waiting(0, 1), row(1), waiting(2, 1))
    second = group(waiting(0, 1, pid=801, ago_s=0.1, is_async=True), row(1, pid=802), name="second")
    assert _summary(observation(world, second))[0].startswith("rank 1 holds up ranks 0, 2")


def test_a_stopped_process_is_told_with_the_way_out() -> None:
    seen = observation(group(waiting(0, 1), row(1)), states={801: "T"})
    assert _summary(seen)[0] == "rank 1 (pid 801) is stopped by a signal; kill -CONT 801 lets it go on"
    assert "  it can't show its stack: it is stopped" in render(seen)
    debugged = observation(group(waiting(0, 1), row(1)), states={801: "t"})
    assert _summary(debugged)[0] == "rank 1 (pid 801) is stopped by a debugger"


def test_a_rank_that_has_not_joined_or_has_ended_is_told_so() -> None:
    absent = observation(group(waiting(0, 1), row(1, pid=0, state="absent", entry=None, arrived=0)))
    assert _summary(absent)[0].startswith("rank 1, which has not joined, holds up rank 0")
    assert "rank 1   pid 0        has not joined" in render(absent)
    gone = observation(group(waiting(0, 1), row(1)), states={801: ""})
    assert _summary(gone)[0].startswith("rank 1, whose process 801 has ended, holds up rank 0")


def test_many_late_ranks_are_counted() -> None:
    seen = observation(group(waiting(0, 1), *(row(rank) for rank in range(1, 40))))
    summary = _summary(seen)
    assert len(summary) == 9
    assert summary[-1] == "and 31 more ranks hold up others"


def test_a_message_from_anybody_blames_nobody() -> None:
    seen = observation(group(row(0), receiving(1, -1), row(2)))
    assert _summary(seen) == ["rank 1 has waited 5 s in recv from any rank, me/train.py:61: no rank has sent it"]
    assert "waits 5 s in recv from any rank, me/train.py:61, for any rank" in render(seen)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (fault("mismatch"), "rank 3 called something else than the others"),
        (fault("timeout"), "rank 2 timed out waiting for rank 3"),
        (fault("timeout", culprit=-1), "rank 2 timed out"),
        (fault("peer_died"), "rank 3 died"),
        (fault("peer_left"), "rank 3 left it"),
        (fault("peer_failed", text="KeyError: 'x'\nmore"), "rank 3 raised: KeyError: 'x'"),
        (fault("aborted", text="enough"), "rank 3 aborted it: enough"),
        (fault("unknown"), "unknown"),
        (
            fault("mismatch", wanted_bytes=12, found_bytes=8),
            "rank 3 called something else than the others: 12 bytes expected, 8 given",
        ),
        (
            fault("timeout", awaited="stream"),
            "rank 2 timed out waiting for rank 3: its GPU had not finished what it was given before",
        ),
        (
            fault("out_of_memory", wanted_bytes=900, found_bytes=100),
            "rank 3 had not enough shared memory: 900 bytes needed, 100 available",
        ),
    ],
)
def test_a_broken_group_tells_why_in_ranks_of_the_job(broken: FaultFacts, words: str) -> None:
    world = group(*(row(rank) for rank in range(4)))
    pair = group(waiting(0, 1, pid=802), row(1, pid=803), name="pair", fault=broken)
    seen = observation(world, pair)
    assert _summary(seen) == [f'group "pair" is broken in operation #7: {words}']
    assert 'group "pair", ranks 2-3\n  rank 2   pid 802      failed in all_reduce #7' in render(seen)


def test_a_rank_at_a_breakpoint_and_one_that_waits_elsewhere_are_told_so() -> None:
    world = group(row(0, is_debugged=True), row(1), row(2, state="dead", exit_status=265))
    other = group(row(0, pid=800), waiting(1, 0, pid=801), name="other")
    shown = render(observation(world, other))
    assert "rank 0   pid 800      stands at a breakpoint; its last: all_reduce #6" in shown
    assert 'rank 1   pid 801      waits in group "other"' in shown
    assert "rank 2   pid 802      was killed by SIGKILL (signal 9); its last: all_reduce #6" in shown


def test_ranks_that_are_threads_stand_where_their_thread_stands() -> None:
    ranks = [row(rank, pid=5, is_thread=True, thread=70 + rank) for rank in range(2)]
    ranks[0] = ranks[0]._replace(arrived=7, sleeps_for=1, entry=entry())
    seen = observation(group(*ranks))
    seen.processes[0].stacks = stacks(("/home/me/late.py", 3, "late"), is_main=False, ident=71) + stacks(
        ("/home/me/main.py", 1, "main")
    )
    assert _summary(seen)[0].endswith("for 5 s; it is at me/late.py:3 in late")
    seen.processes[0].stacks = stacks(("/home/me/main.py", 1, "main"))
    assert _summary(seen)[0].endswith("for 5 s"), "what another thread does is not what it does"


def test_the_calls_that_led_to_a_line_are_told_from_those_that_it_made() -> None:
    seen = observation(group(row(0)))
    seen.processes[0].stacks = stacks(
        ("/usr/lib/python3.11/threading.py", 5, "join"),
        ("/home/me/train.py", 61, "step"),
        ("/home/me/train.py", 80, "<module>"),
        ident=800,
    )
    assert render(seen).splitlines()[-4:] == [
        "    me/train.py:61 in step, which called:",
        "      python3.11/threading.py:5 in join",
        "    called by:",
        "    me/train.py:80 in <module>",
    ]


def test_the_stack_of_a_process_is_read_once_however_many_rows_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def parse_counted(text: str) -> list[ThreadStack]:
        texts.append(text)
        return parse_stacks(text)

    seen = observation(*(group(*(row(rank, pid=800) for rank in range(20)), name=f"{number}") for number in range(3)))
    seen.processes[0].stacks = stacks(("/home/me/data.py", 12, "load"))
    monkeypatch.setattr(findings, "parse_stacks", parse_counted)
    assert render(seen).count("is at me/data.py:12 in load; its last") == 60
    assert len(texts) <= 2

"""Which ranks hold up ranks of other hosts, from made-up observations of all hosts."""

from __future__ import annotations

from phalanx.diagnosis.observation import HostObservation, Observation, from_json, to_json
from phalanx.diagnosis.over_hosts import summarize_hosts
from phalanx.diagnosis.report import render
from phalanx.diagnosis.views import JobView
from tests.diagnosis.observations import fault, group, observation, row, stacks, waiting


def host(number: int, *groups_: object, **changes: object) -> Observation:
    """A host with two ranks, whose processes have the same numbers on all hosts."""
    job = JobView(name="train", pids=[800, 801], first_rank=2 * number, host=f"host {number} of 2")
    return observation(*groups_, job=job, host=f"node{number}", **changes)  # type: ignore[arg-type]


def both_wait(name: str = "0") -> object:
    return group(waiting(0, -1), waiting(1, -1), name=name)


def second_is_late(name: str = "0") -> object:
    return group(waiting(0, 1), row(1), name=name)


def test_a_late_rank_of_another_host_is_named_with_its_line() -> None:
    other = host(1, second_is_late())
    other.processes[1].stacks = stacks(("/home/me/data.py", 12, "load"))
    assert summarize_hosts([host(0, both_wait()), other]) == [
        "rank 3 holds up ranks 0-1, in all_reduce #7, me/train.py:61",
        "  rank 3 on host 1 is at me/data.py:12 in load",
    ]


def test_groups_of_one_host_say_nothing_about_other_hosts() -> None:
    assert summarize_hosts([host(0, both_wait("a")), host(1, second_is_late("b"))]) == []


def test_nobody_is_blamed_if_all_have_arrived_or_the_group_is_broken() -> None:
    assert summarize_hosts([host(0, both_wait()), host(1, both_wait())]) == []
    broken = group(waiting(0, 1), row(1), name="0", fault=fault("aborted"))
    assert summarize_hosts([host(0, both_wait()), host(1, broken)]) == []


def test_a_rank_that_has_a_late_neighbour_is_not_said_to_wait_for_another_host() -> None:
    lines = summarize_hosts([host(0, second_is_late()), host(1, second_is_late())])
    assert lines == []


def test_the_report_begins_with_it_and_shows_every_host() -> None:
    seen = host(0, both_wait())
    seen.other_hosts = [HostObservation("host 1 (node1)", host(1, second_is_late())), HostObservation("host 2", None)]
    text = render(seen)
    assert text.splitlines()[:2] == [
        'job "train" (pid 800) on node0 (host 0 of 2), 2 ranks',
        "  rank 3 holds up ranks 0-1, in all_reduce #7, me/train.py:61",
    ]
    assert "on host 1 (node1):" in text
    assert "rank 2   pid 800" in text.partition("on host 1")[2]
    assert "on host 2:\n  it has not answered" in text


def test_a_record_with_other_hosts_can_be_read_again() -> None:
    seen = host(0, both_wait())
    seen.other_hosts = [HostObservation("host 1 (node1)", host(1, second_is_late()))]
    assert render(from_json(to_json(seen), "here")) == render(seen)

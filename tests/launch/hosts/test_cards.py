"""Which hosts belong to a job, and which number each gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from phalanx.errors import UsageError
from phalanx.launch.hosts.addresses import Endpoint, parse_endpoint
from phalanx.launch.hosts.cards import HostCard, JobHosts, RefusedHostError, Seats, host_title, missing_numbers
from phalanx.launch.hosts.waiting_words import Command, describe_missing, describe_no_server
from phalanx.settings import first_slurm_host, slurm_step


def card(name: str = "node0", number: int | None = None, **changes: object) -> HostCard:
    plain = HostCard(name, "10.0.0.1", 7, 2, number, 3, "job", 0, 1234, {"phalanx": "1.0", "torch": "2.13"})
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_card_survives_json() -> None:
    assert HostCard.from_json(card(number=2).to_json()) == card(number=2)


def test_the_ranks_of_a_host_may_have_any_numbers() -> None:
    cards = [replace(card("one"), ranks=(0, 2)), replace(card("two"), ranks=(1, 3, 4))]
    assert host_title(cards, 1) == "host 1 (two, ranks 1, 3-4)"
    assert HostCard.from_json(json.loads(json.dumps(cards[1].to_json()))) == cards[1]


@pytest.mark.parametrize(
    "value", [None, [], {}, {**card().to_json(), "pid": "7"}, {**card().to_json(), "versions": {"torch": 2}}]
)
def test_what_is_no_card_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="no card"):
        HostCard.from_json(value)


def test_names_of_hosts_can_not_steer_the_terminal() -> None:
    assert HostCard.from_json({**card().to_json(), "name": "\x1b[2J"}).name == "\\x1b[2J"


def test_the_server_comes_first_and_the_others_as_they_come() -> None:
    seats = Seats(card("server"))
    for name in ("early", "server", "late"):
        seats.admit(card(name))
    assert seats.is_complete
    assert [each.name for each in seats.in_order()] == ["server", "early", "late"]


def test_given_numbers_count_and_the_rest_gets_what_is_free() -> None:
    seats = Seats(card("server"))
    for each in (card("server"), card("two", 2), card("zero", 0)):
        seats.admit(each)
    assert [each.name for each in seats.in_order()] == ["zero", "server", "two"]


def test_the_seat_of_the_server_is_kept() -> None:
    seats = Seats(card("server"))
    seats.admit(card("a"))
    seats.admit(card("b"))
    with pytest.raises(RefusedHostError, match="all 3 hosts of the job are there already"):
        seats.admit(card("c"))
    seats.admit(card("server"))
    assert seats.is_complete


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (card("node1", job_id="other"), 'it belongs to job "other", and "job" meets on node0'),
        (card("node1", num_hosts=2), "--nnodes 2, and 3 on node0"),
        (card("node1", max_restarts=1), "--restart 1, and 0 on node0"),
        (card("node1", versions={"phalanx": "1.0", "torch": "2.12"}), r"it has torch 2\.12, and node0 .* has torch 2"),
        (card("node1", versions={}), "it has phalanx no version"),
        (card("node1", 0), r"it has --node-rank 0, and so has node0 \(10\.0\.0\.1\)"),
        (card("node1", 3), "it has --node-rank 3; give 0 to 2"),
    ],
)
def test_a_host_that_does_not_belong_there_is_refused_by_name(other: HostCard, why: str) -> None:
    seats = Seats(card(number=0))
    seats.admit(card(number=0))
    with pytest.raises(RefusedHostError, match=why):
        seats.admit(other)
    assert len(seats.cards) == 1


def test_ranks_are_numbered_by_host() -> None:
    hosts = JobHosts((card("a", num_ranks=3), card("b", num_ranks=1), card("c")), 1)
    assert (hosts.num_ranks, hosts.first_rank) == (6, 3)
    assert hosts.title(0) == "host 0 (a, ranks 0-2)"
    assert hosts.title(1) == "host 1 (b, rank 3)"


def test_missing_numbers_are_known_if_all_hosts_have_numbers() -> None:
    assert missing_numbers([card(number=1)], 3) == [0, 2]
    assert missing_numbers([card(number=1), card()], 3) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [("a", ("a", 29500)), ("a:1", ("a", 1)), ("::1", ("::1", 29500)), ("[fe80::1]:80", ("fe80::1", 80))],
)
def test_endpoints(text: str, place: tuple[str, int]) -> None:
    assert parse_endpoint(text) == place
    assert parse_endpoint(str(Endpoint(*place))) == place


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:b", "a:1:2:b"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    if text == "a:1:2:b":  # taken for an address
        assert parse_endpoint(text).port == 29500
        return
    with pytest.raises(UsageError, match="no place to meet"):
        parse_endpoint(text)


def test_the_command_for_another_host_has_its_number_and_not_this_hosts_address() -> None:
    options = ("phalanx", "run", "--nnodes", "2", "--node_rank=0", "--local-addr", "10.0.0.1", "-n", "4")
    command = Command(options, ("my train.py", "--node-rank", "7"))
    assert command.for_host(1) == "phalanx run --nnodes 2 -n 4 --node-rank 1 'my train.py' --node-rank 7"
    assert command.for_host(None) == "phalanx run --nnodes 2 -n 4 'my train.py' --node-rank 7"


def test_missing_hosts_are_named_with_the_command() -> None:
    command = Command(("phalanx", "run", "--nnodes", "3", "--node-rank", "1"), ("t.py",))
    text = describe_missing([card("node1", 1)], 3, command)
    assert text.splitlines() == [
        "waiting for 2 of 3 hosts (--node-rank 0, 2); here: node1 (10.0.0.1); on each of the others, type",
        "    phalanx run --nnodes 3 --node-rank 0 t.py",
        "    phalanx run --nnodes 3 --node-rank 2 t.py",
    ]
    nobody_types_it = Command((), ())
    assert describe_missing([card("node1", 1)], 3, nobody_types_it).endswith("here: node1 (10.0.0.1)")
    assert describe_no_server(Endpoint("node0", 1), "refused", nobody_types_it) == "waiting for node0:1 (refused)"
    assert "only this machine reaches 127.0.0.1" in describe_missing([card(address="127.0.0.1")], 3, command)
    no_server = describe_no_server(Endpoint("node0", 1), "Connection refused", command)
    assert "waiting for node0:1 (Connection refused); on node0, type" in no_server
    assert no_server.endswith("--node-rank 0 t.py")


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("a1", "a1"),
        ("a1,a2", "a1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("n[7]", "n7"),
        ("rack[1-2]-n[04,05],x", "rack1-n04"),
    ],
)
def test_the_first_host_of_slurms_list(hosts: str, first: str) -> None:
    assert first_slurm_host(hosts) == first


def test_a_step_of_slurm_with_one_task_on_each_node() -> None:
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.7",
    }
    found = slurm_step(step)
    assert found is not None
    assert (found.job, found.num_hosts, found.number, found.first_host) == ("4711.0", 2, 1, "gpu03")
    assert 1024 < found.port < 32768
    assert slurm_step({**step, "SLURM_STEP_NUM_NODES": "1"}) is None
    assert slurm_step({}) is None
    with pytest.raises(UsageError, match="8 tasks on 2 nodes"):
        slurm_step({**step, "SLURM_STEP_NUM_TASKS": "8"})

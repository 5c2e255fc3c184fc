"""What facts about hosts and paths mean, from literals."""

from __future__ import annotations

import dataclasses
import json

import pytest

from phalanx.doctor.finding import Finding
from phalanx.doctor.hosts.comparison import compare_hosts, compare_paths
from phalanx.doctor.hosts.facts import HostFacts, gather_facts
from phalanx.doctor.hosts.paths import Path, PathServer, measure_path
from phalanx.errors import UsageError

_FIRST = HostFacts("node0", "10.0.0.1", 4000, "", "eth0", 1000, 1500, "machine 0", {"phalanx": "0.1.0", "numpy": ""})
_SECOND = dataclasses.replace(_FIRST, name="node1", address="10.0.0.2", machine="machine 1")
_GOOD = Path("", 2e-4, 9.4e8, 0.01)


def _of(findings: list[Finding], subject: str) -> Finding:
    (found,) = [finding for finding in findings if finding.subject == subject]
    return found


def test_hosts_that_are_alike_are_fine() -> None:
    findings = compare_hosts([_FIRST, _SECOND])
    assert {finding.status for finding in findings} == {"ok"}
    assert _of(findings, "numpy").text == "not installed everywhere"


def test_other_versions_of_torch_are_a_problem_and_those_of_numpy_a_note() -> None:
    other = dataclasses.replace(_SECOND, versions={"phalanx": "0.2.0", "numpy": "2.0"})
    findings = compare_hosts([_FIRST, other])
    assert _of(findings, "phalanx").status == "problem"
    assert _of(findings, "phalanx").text == "0.1.0 on node0; 0.2.0 on node1"
    assert _of(findings, "numpy").status == "note"
    assert _of(findings, "numpy").text == "not installed on node0; 2.0 on node1"


def test_paths_are_judged_by_what_the_interfaces_promise() -> None:
    rows = [[Path(), _GOOD], [dataclasses.replace(_GOOD, bits_per_s=1e8), Path()]]
    findings = compare_paths([_FIRST, _SECOND], rows)
    assert _of(findings, "node0 to node1") == Finding(
        "Network", "node0 to node1", "ok", "round trip 200 us, 940 Mbit/s"
    )
    slow = _of(findings, "node1 to node0")
    assert (slow.status, slow.text) == ("note", "round trip 200 us, 100 Mbit/s, and the interfaces promise 1.00 Gbit/s")


def test_a_port_that_is_closed_is_a_problem_of_the_firewall() -> None:
    rows = [[Path(), Path("can't be connected to at port 4000: no answer within 5 s")], [_GOOD, Path()]]
    found = _of(compare_paths([_FIRST, _SECOND], rows), "node0 to node1")
    assert (found.status, found.text) == ("problem", "node1 can't be connected to at port 4000: no answer within 5 s")
    assert found.advice.startswith("Let the hosts connect to each other at all ports")


def test_long_messages_that_are_lost_are_a_problem_of_packet_sizes() -> None:
    lost = Path("gets short messages, and no long ones: no answer within 10 s", 2e-4)
    found = _of(compare_paths([_FIRST, _SECOND], [[Path(), lost], [_GOOD, Path()]]), "node0 to node1")
    assert found.status == "problem"
    assert "MTU" in found.advice


@pytest.mark.parametrize(("clock_s", "words"), [(7.25, "7.2 s ahead of node0"), (-90.0, "90.0 s behind node0")])
def test_a_wrong_clock_is_noted(clock_s: float, words: str) -> None:
    rows = [[Path(), dataclasses.replace(_GOOD, clock_s=clock_s)], [_GOOD, Path()]]
    found = _of(compare_paths([_FIRST, _SECOND], rows), "clocks")
    assert found.status == "note"
    assert found.text.startswith(f"node1 is {words}.")


def test_facts_and_paths_survive_json() -> None:
    facts = gather_facts("here", "127.0.0.1", 1, "word")
    assert HostFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    assert facts.interface == "lo"
    assert Path.from_json(json.loads(json.dumps(_GOOD.to_json()))) == _GOOD
    other_facts = [facts.to_json() | {"port": "1"}, facts.to_json() | {"versions": {"a": 1}}]
    wrongs: list[object] = [None, [], {}, {"problem": 1}, *other_facts]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            HostFacts.from_json(wrong)
        with pytest.raises(UsageError):
            Path.from_json(wrong)


@pytest.mark.slow
def test_a_path_is_measured_and_strangers_get_no_answer() -> None:
    with PathServer("127.0.0.1") as server:
        target = dataclasses.replace(_FIRST, address="127.0.0.1", port=server.port, word=server.word)
        path = measure_path(target)
        assert path.problem == ""
        assert 0 < path.trip_s < 0.5
        assert path.bits_per_s > 1e7
        assert abs(path.clock_s) < 0.5
        stranger = measure_path(dataclasses.replace(target, word="0" * 32))
        assert stranger.problem.startswith(f"takes connections at port {server.port} and does not answer")
    assert measure_path(target).problem == f"can't be connected to at port {server.port}: connection refused"

"""`phalanx doctor --hosts` on hosts that are well, and on hosts that have what goes wrong most often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.bed import Bed, Host, hosts, needs_hosts

pytestmark = [needs_hosts, pytest.mark.slow]

_DOCTOR = [sys.executable, "-c", "from phalanx.cli.doctor import doctor; doctor(prog_name='phalanx doctor')", "--hosts"]
_LISTENER = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    server.accept()[0].sendall(b"SSH-2.0-OpenSSH\\r\\n")
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with hosts(2, rate="1gbit") as bed:
        yield bed


class _Doctor:
    """The command on a host."""

    def __init__(self, host: Host, *options: str, endpoint: str = "host0:29500", **environment: str) -> None:
        words = [*_DOCTOR, "--json", "--rdzv-endpoint", endpoint, *options]
        self._process = host.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment)

    def page(self) -> dict[str, Any]:
        output, self.said = self._process.communicate(timeout=90)
        page: dict[str, Any] = json.loads(output)
        assert page["ready"] == (self._process.returncode == 0)
        return page


def _on_all(bed: Bed, *options: str, **keywords: Any) -> list[dict[str, Any]]:
    doctors = [_Doctor(host, "--nnodes", str(len(bed)), *options, **keywords) for host in bed]
    return [doctor.page() for doctor in doctors]


def _find(page: dict[str, Any], subject: str) -> dict[str, Any]:
    (found,) = [finding for finding in page["findings"] if finding["subject"] == subject]
    return dict(found)


def _statuses(page: dict[str, Any]) -> dict[str, str]:
    return {finding["subject"]: finding["status"] for finding in page["findings"]}


def test_hosts_that_are_well_tell_the_same_about_each_other(bed: Bed) -> None:
    pages = _on_all(bed)
    names = {"own name", "name of endpoint"}
    shared = [[each for each in page["findings"] if each["subject"] not in names] for page in pages]
    assert shared[0] == shared[1]
    statuses = _statuses(pages[0])
    paths = ["host0 to host1", "host1 to host0"]  # a busy machine may be too slow for the link
    assert all(statuses.pop(path) in ("ok", "note") for path in paths)
    assert set(statuses.values()) == {"ok"}, pages[0]
    assert _find(pages[1], "host0:29500")["text"] == "all 2 hosts have come: host0 (10.77.0.1), host1 (10.77.0.2)"
    assert "round trip" in _find(pages[0], paths[0])["text"]


def test_the_host_that_waits_names_the_command_to_type_elsewhere(bed: Bed) -> None:
    doctor = _Doctor(bed[0], "--rdzv-timeout", "1")
    problem = _find(doctor.page(), "host0:29500")
    assert problem["text"] == "nobody else came within 1 s"
    assert "port 29500 of 10.77.0.1" in problem["advice"]
    assert doctor.said == (
        "waiting for 1 of 2 hosts; here: host0. "
        "On the others: phalanx doctor --hosts --nnodes 2 --rdzv-endpoint host0:29500\n"
    )


def test_nobody_at_the_endpoint(bed: Bed) -> None:
    problem = _find(_Doctor(bed[1], "--rdzv-timeout", "1").page(), "host0:29500")
    assert problem["text"] == "host0 answers, but nothing listens at port 29500 there after 1 s"
    assert problem["advice"].startswith("Start phalanx doctor --hosts on host0 too.")


def test_an_endpoint_that_does_not_answer(bed: Bed) -> None:
    bed[0].lose_packets()
    try:
        problem = _find(_Doctor(bed[1], "--rdzv-timeout", "1").page(), "host0:29500")
    finally:
        bed[0].pass_packets()
    assert problem["text"] == "host0:29500 can't be reached from host1 (10.77.0.2): no answer"
    assert "firewall" in problem["advice"]


def test_an_endpoint_without_a_route(bed: Bed) -> None:
    problem = _find(_Doctor(bed[1], "--rdzv-timeout", "1", endpoint="192.168.7.7:29500").page(), "192.168.7.7:29500")
    assert problem["text"].endswith("network is unreachable")
    assert "ip route get" in problem["advice"]


def test_a_name_that_is_unknown(bed: Bed) -> None:
    problem = _find(_Doctor(bed[1], endpoint="node7:29500").page(), "name of endpoint")
    assert (problem["status"], problem["text"]) == ("problem", "node7: this name is unknown on host1")


def test_an_endpoint_that_each_host_takes_for_itself(bed: Bed) -> None:
    problem = _find(_Doctor(bed[1], endpoint="localhost:29500").page(), "name of endpoint")
    assert problem["status"] == "problem"
    assert "an address that each host uses for itself" in problem["text"]


def test_another_program_at_the_endpoint(bed: Bed) -> None:
    with bed[0].start(sys.executable, "-Ic", _LISTENER, "10.77.0.1", "29500", stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        problems = [_find(page, "host0:29500") for page in _on_all(bed)]
        listener.kill()
    assert [problem["text"] for problem in problems] == ["a program that is not phalanx listens at host0:29500"] * 2


def test_hosts_with_different_tokens(bed: Bed) -> None:
    first = _Doctor(bed[0], "--rdzv-timeout", "6", PHALANX_JOB_TOKEN="one")
    second = _Doctor(bed[1], PHALANX_JOB_TOKEN="another")
    assert _find(second.page(), "host0:29500")["text"] == "the host at host0:29500 has another token"
    assert _find(first.page(), "host0:29500")["text"] == "a program at 10.77.0.2 with another token came here"


def test_a_token_in_a_file(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("5ecret\n")
    file.chmod(0o600)
    doctors = [_Doctor(bed[0], "--token-file", str(file)), _Doctor(bed[1], PHALANX_JOB_TOKEN="5ecret")]
    assert [_find(doctor.page(), "host0:29500")["status"] for doctor in doctors] == ["ok", "ok"]
    file.chmod(0o644)
    refused = subprocess.run(
        [*_DOCTOR, "--rdzv-endpoint", "a", "--token-file", file], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "other users can read or change the token (mode 644)" in refused.stderr


def test_hosts_with_different_versions(bed: Bed, tmp_path: Path) -> None:
    other = tmp_path / "torch-2.12.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    doctors = [_Doctor(bed[0]), _Doctor(bed[1], PYTHONPATH=str(tmp_path))]
    for doctor in doctors:
        found = _find(doctor.page(), "torch")
        assert found["status"] == "problem"
        assert found["text"].endswith(" on host0; 2.12.0 on host1")
        assert found["advice"] == "Install the same version of torch on all hosts."


def test_hosts_whose_own_name_is_a_loopback_address() -> None:
    with hosts(2, has_loopback_names=True) as bed:
        pages = _on_all(bed)
    for number, page in enumerate(pages):
        assert page["ready"], page
        own = _find(page, "own name")
        assert own["status"] == "note"
        assert own["text"].startswith(
            f"host{number} is 127.0.1.1, and others reach it at 10.77.0.{number + 1}; Debian's"
        )


def test_cards_with_different_packet_sizes() -> None:
    with hosts(2) as bed:
        bed[1].run("ip", "link", "set", "dev", "eth0", "mtu", "9000")
        page = _on_all(bed)[0]
    assert _find(page, "packet size")["status"] == "note"
    assert _find(page, "packet size")["text"] == "eth0 of host0: 1500, eth0 of host1: 9000"


def test_two_doctors_on_one_machine(bed: Bed) -> None:
    doctors = [_Doctor(bed[0]), _Doctor(bed[0])]
    for doctor in doctors:
        found = _find(doctor.page(), "machines")
        assert (found["status"], found["text"]) == ("note", "host0 and host0 are the same machine")


def test_hosts_that_go_away_while_all_measure(bed: Bed) -> None:
    """The other speaks the protocol as far as the meeting, and leaves."""
    program = f"""
import socket, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
from phalanx.doctor.hosts.facts import gather_facts
from phalanx.doctor.hosts.meeting import meet
from phalanx.launch.hosts.addresses import Endpoint
with meet(Endpoint("host0", 29500), 2, "", gather_facts("host1", "10.77.0.2", 9, "x" * 32), "", 20, print):
    pass
"""
    doctor = _Doctor(bed[0])
    bed[1].run(sys.executable, "-c", program)
    problem = _find(doctor.page(), "all")
    assert problem["text"].startswith("a host went away, or lost its connection, while all were measuring")

"""Agents of several hosts on this machine, which meet at a port of the loopback interface; without torch."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.errors import OperationTimeoutError, PeerDiedError, PeerError, UsageError
from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.agent_client import AgentClient
from phalanx.launch.hosts.blame import AttemptVerdict
from phalanx.launch.hosts.client import ServerClient
from phalanx.launch.hosts.plan import HostsPlan
from phalanx.launch.rank_server import ServerBoard

LIMIT_S = 60.0
CULPRIT = AttemptVerdict("rank 3 was killed", 1, 137, 3)


class Talker:
    """An agent and what it has said."""

    def __init__(self, **changes: Any) -> None:
        plan = {"num_hosts": 2, "number": None, "job_id": "job", "token": "secret", "options": ("phalanx", "run")}
        self.client = AgentClient(HostsPlan(**{**plan, **changes}), 2, 0)
        self.said: list[dict[str, Any]] = []
        self.is_gone = False

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["kind"] == kind]

    def listen(self) -> None:
        try:
            self.said += self.client.read()
        except EOFError:
            self.is_gone = True


@contextlib.contextmanager
def agents(**changes: Any) -> Iterator[Callable[..., Talker]]:
    """Yield a function that starts another agent; all are ended in any case."""
    with socket.socket() as claim:
        claim.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", claim.getsockname()[1])
    with contextlib.ExitStack() as stack:

        def start(**more: Any) -> Talker:
            talker = Talker(**{"endpoint": endpoint, **changes, **more})
            stack.callback(talker.client.close)
            return talker

        yield start


def listen_until(is_enough: Callable[[], object], *talkers: Talker) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_enough():
        assert time.monotonic() < deadline, [talker.said for talker in talkers]
        poll = select.poll()
        living = {talker.client.fileno(): talker for talker in talkers if not talker.is_gone}
        for descriptor in living:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(500):
            living[descriptor].listen()


def await_kind(kind: str, *talkers: Talker) -> list[dict[str, Any]]:
    """Wait until all have said something of this kind; return the last thing each of them has said of it."""
    listen_until(lambda: all(talker.of_kind(kind) for talker in talkers), *talkers)
    return [talker.of_kind(kind)[-1] for talker in talkers]


def server_of(start: dict[str, Any], token: str = "") -> ServerClient:
    host, _, port = start["place"].rpartition(":")
    return ServerClient(Endpoint(host, int(port)), token or start["token"])


def test_hosts_meet_and_get_numbers() -> None:
    with agents(num_hosts=3) as start:
        first = start()
        await_kind("say", first)
        others = [start(number=2), start()]
        starts = await_kind("start", first, *others)
        assert [each["number"] for each in starts] == [0, 2, 1]
        assert all(each["cards"] == starts[0]["cards"] for each in starts)
        assert "waiting for 2 of 3 hosts" in first.of_kind("say")[0]["text"]


def test_a_host_without_a_server_says_where_it_is_expected() -> None:
    with agents(number=1) as start:
        # Nobody can listen at an address that is reserved for documentation.
        lonely = start(endpoint=Endpoint("192.0.2.1", 1))
        (said,) = await_kind("say", lonely)
        assert said["text"].startswith("waiting for 192.0.2.1:1 (")


def test_an_unknown_name_is_refused() -> None:
    with agents() as start:
        (refused,) = await_kind("refused", start(endpoint=Endpoint("no-such-host.invalid", 1)))
        assert "no-such-host.invalid: this name is unknown here" in refused["why"]


def test_a_host_with_another_token_is_refused_and_the_job_goes_on() -> None:
    with agents() as start:
        first = start()
        await_kind("say", first)
        for token in ("other", ""):
            (refused,) = await_kind("refused", start(token=token))
            assert "has another token than this host" in refused["why"]
        listen_until(lambda: any("another token" in each["text"] for each in first.of_kind("say")), first)
        await_kind("start", first, start())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"job_id": "other"}, 'it belongs to job "other"'),
        ({"num_hosts": 3}, "it was started with --nnodes 3"),
        ({"number": 0}, "it has --node-rank 0, and so has"),
    ],
)
def test_a_host_that_does_not_belong_there_is_refused_by_name_on_all_hosts(changes: dict[str, Any], why: str) -> None:
    with agents() as start:
        first = start(number=0)
        await_kind("say", first)
        (refused,) = await_kind("refused", start(**changes))
        assert why in refused["why"]
        own_name = os.uname().nodename
        listen_until(lambda: any(f"refused {own_name}" in each["text"] for each in first.of_kind("say")), first)
        assert any(why in each["text"] for each in first.of_kind("say"))
        await_kind("start", first, start())


def test_when_the_time_of_the_servers_host_is_up_all_hosts_learn_it() -> None:
    with agents(num_hosts=3) as start:
        first = start(timeout_s=10.0)
        await_kind("say", first)  # it is the server
        own, other = await_kind("refused", first, start(timeout_s=600.0))
        assert "not all hosts came within 10 s: waiting for " in own["why"]
        assert "has waited 10 s for all hosts" in other["why"]


def test_one_verdict_for_all_hosts_and_the_cause_wins() -> None:
    with agents() as start:
        hosts = [start(), start()]
        await_kind("start", *hosts)
        hosts[0].client.accuse(0, AttemptVerdict("rank 0 lost a connection", 0, 1, 0, is_consequence=True))
        hosts[1].client.accuse(0, CULPRIT)
        verdicts = await_kind("verdict", *hosts)
        assert [each["verdict"] for each in verdicts] == [CULPRIT.to_json()] * 2


def test_all_hosts_start_again_when_all_are_ready() -> None:
    with agents() as start:
        hosts = [start(), start()]
        await_kind("start", *hosts)
        hosts[1].client.accuse(0, CULPRIT)
        await_kind("verdict", *hosts)
        hosts[0].client.tell_ready()
        hosts[1].client.tell_ready()
        listen_until(lambda: all(len(host.of_kind("start")) == 2 for host in hosts), *hosts)
        assert [host.of_kind("start")[1]["attempt"] for host in hosts] == [1, 1]
        hosts[0].client.tell_ended(1)
        hosts[1].client.tell_ended(1)
        await_kind("over", *hosts)


@pytest.mark.parametrize("killed", [0, 1], ids=["the server's host", "another host"])
def test_a_host_whose_agent_was_killed_is_named(killed: int) -> None:
    with agents() as start:
        hosts = [start()]
        await_kind("say", *hosts)
        hosts.append(start())
        await_kind("start", *hosts)
        os.kill(hosts[killed].client.pid, signal.SIGKILL)
        (verdict,) = await_kind("verdict", hosts[1 - killed])
        assert f"host {killed} " in verdict["verdict"]["text"]
        assert "its launcher" in verdict["verdict"]["text"]


@pytest.mark.parametrize("killed", [0, 1], ids=["the server's host", "another host"])
def test_a_host_that_is_lost_before_a_restart_is_named(killed: int) -> None:
    with agents() as start:
        hosts = [start()]
        await_kind("say", *hosts)
        hosts.append(start())
        await_kind("start", *hosts)
        hosts[0].client.accuse(0, CULPRIT)
        await_kind("verdict", *hosts)
        hosts[1 - killed].client.tell_ready()
        os.kill(hosts[killed].client.pid, signal.SIGKILL)
        (lost,) = await_kind("lost", hosts[1 - killed])
        assert f"host {killed} " in lost["text"]
        assert len(hosts[1 - killed].of_kind("verdict")) == 1


def test_a_host_may_leave_when_its_ranks_have_ended_well() -> None:
    with agents() as start:
        hosts = [start()]
        await_kind("say", *hosts)
        hosts += [start()]
        await_kind("start", *hosts)
        hosts[1].client.tell_ended(0)
        hosts[1].client.close()
        hosts[0].client.tell_ended(0)
        await_kind("over", hosts[0])
        assert not hosts[0].of_kind("verdict")


def test_the_host_of_the_server_takes_the_watch_with_it_when_its_ranks_have_ended_well() -> None:
    with agents() as start:
        hosts = [start()]
        await_kind("say", *hosts)
        hosts += [start()]
        await_kind("start", *hosts)
        hosts[0].client.tell_ended(0)
        closing = threading.Thread(target=hosts[0].client.close)
        closing.start()
        await_kind("over", hosts[1])
        assert not hosts[1].of_kind("verdict")
        hosts[1].client.close()
        closing.join()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1], ids=["the server's host", "another host"])
def test_a_silent_host_is_named_after_three_seconds(stopped: int) -> None:
    with agents() as start:
        hosts = [start()]
        await_kind("say", *hosts)
        hosts.append(start())
        await_kind("start", *hosts)
        os.kill(hosts[stopped].client.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            (verdict,) = await_kind("verdict", hosts[1 - stopped])
            assert 2.5 < time.monotonic() - began < 10.0
            assert f"host {stopped} " in verdict["verdict"]["text"]
            assert "has been silent for 3 s" in verdict["verdict"]["text"]
        finally:
            os.kill(hosts[stopped].client.pid, signal.SIGCONT)


def is_closed_by_server(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def test_ranks_share_a_board_and_strangers_do_not() -> None:
    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        one, other = server_of(told), server_of(told)
        ServerBoard(one, "0/").set("card", "text")
        assert ServerBoard(other, "0/").get("card", 10.0) == "text"
        with pytest.raises(OperationTimeoutError, match='nobody has written "other"'):
            ServerBoard(other, "0/").get_many(["card", "other"], 0.01)
        with pytest.raises(UsageError, match="does not accept the token"):
            server_of(told, "guess").request({"op": "get", "keys": ["0/card"]})
        for client in (one, other):
            client.close()


def test_a_thread_that_waits_for_a_value_does_not_keep_another_one_from_writing_it() -> None:
    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        with contextlib.closing(server_of(told)) as client:
            board, found = ServerBoard(client, "0/"), list[str]()
            readers = [threading.Thread(target=lambda: found.append(board.get("card", LIMIT_S))) for _ in range(3)]
            for reader in readers:
                reader.start()
            board.set("card", "text")
            for reader in readers:
                reader.join(LIMIT_S)
            assert found == ["text"] * 3


def test_strangers_can_neither_stop_a_job_nor_fill_its_connections() -> None:
    with agents() as start, contextlib.ExitStack() as stack:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        host, _, port = told["place"].rpartition(":")
        for number in range(300):
            stranger = stack.enter_context(socket.create_connection((host, int(port)), timeout=10.0))
            with contextlib.suppress(OSError):
                stranger.sendall([b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096][number % 3])
        hosts[0].client.tell_ended(0)
        hosts[1].client.tell_ended(0)
        await_kind("over", *hosts)
        assert not hosts[0].of_kind("verdict")


def test_strangers_who_keep_the_server_full_do_not_keep_a_rank_out() -> None:
    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        host, _, port = told["place"].rpartition(":")
        is_enough = threading.Event()
        is_full = threading.Event()

        def keep_full() -> None:
            strangers: list[socket.socket] = []
            while not is_enough.is_set():
                with contextlib.suppress(OSError):
                    strangers.append(socket.create_connection((host, int(port)), timeout=10.0))
                if len(strangers) >= 300:
                    is_full.set()
                    refused = [each for each in strangers if is_closed_by_server(each)]
                    for each in refused or strangers[:1] * (len(strangers) > 600):
                        each.close()
                        strangers.remove(each)
            for each in strangers:
                each.close()

        attacker = threading.Thread(target=keep_full)
        attacker.start()
        try:
            assert is_full.wait(LIMIT_S)
            for _ in range(5):
                with contextlib.closing(server_of(told)) as client:
                    assert client.request({"op": "list", "prefix": ""}) == {"id": 1, "keys": []}
        finally:
            is_enough.set()
            attacker.join(LIMIT_S)


def test_without_a_token_nobody_can_join_once_all_hosts_are_there() -> None:
    with agents(token="") as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        with pytest.raises(UsageError, match="does not accept the token"):
            ServerClient(server_of(told).place, "").request({"op": "list", "prefix": ""})
        with contextlib.closing(server_of(told)) as client:
            assert client.request({"op": "list", "prefix": ""}) == {"id": 1, "keys": []}


def test_a_rank_does_not_wait_for_a_server_that_is_gone() -> None:
    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        client = server_of(told)
        client.request({"op": "list", "prefix": ""})
        for host in hosts:
            os.kill(host.client.pid, signal.SIGKILL)
        with pytest.raises(PeerError, match="is gone"):
            client.request({"op": "list", "prefix": ""})


def test_a_rank_does_not_wait_for_what_a_lost_host_should_write() -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise PeerDiedError("host 1 has been silent for 3 s")

    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        client = ServerClient(server_of(told).place, told["token"], look)
        with contextlib.closing(client), pytest.raises(PeerDiedError, match="silent"):
            client.get(["what host 1 writes"], LIMIT_S)


def test_questions_reach_all_hosts() -> None:
    with agents() as start:
        hosts = [start(), start()]
        (told, _) = await_kind("start", *hosts)
        client = server_of(told)
        answers: list[dict[str, Any]] = []

        def answer() -> bool:
            for number, host in enumerate(hosts):
                for question in host.of_kind("asked"):
                    host.said.remove(question)
                    host.client.answer(question, {"host": number, "what": question["what"]})
            return False

        with contextlib.ExitStack() as stack:
            asker = threading.Thread(target=lambda: answers.append(client.request({"kind": "ask", "what": "rows"})))
            asker.start()
            stack.callback(asker.join)
            listen_until(lambda: answer() or answers, *hosts)
        client.close()
        found = answers[0]["answers"]
        assert {int(found[key]["host"]) for key in found} == {0, 1}
        assert all(found[key]["what"] == "rows" for key in found)

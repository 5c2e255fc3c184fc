"""Authenticated messages between processes of a job: what is accepted, and what is not even parsed."""

from __future__ import annotations

import json

import pytest

from phalanx.launch.hosts.link import Link, LinkError


def pair(server_token: str = "secret", client_token: str = "secret") -> tuple[Link, Link]:
    return Link(server_token, is_server=True), Link(client_token, is_server=False)


def carry(sender: Link, receiver: Link) -> list[dict[str, object]]:
    data = bytes(sender.outgoing)
    sender.outgoing.clear()
    return receiver.feed(data)


def greeted(server_token: str = "secret", client_token: str = "secret") -> tuple[Link, Link]:
    server, client = pair(server_token, client_token)
    carry(server, client)
    carry(client, server)
    carry(server, client)
    assert server.is_open
    assert client.is_open
    return server, client


@pytest.mark.parametrize("token", ["secret", ""])
def test_messages_go_both_ways(token: str) -> None:
    server, client = greeted(token, token)
    client.send({"kind": "beat"})
    client.send({"text": "any\n text"})
    assert carry(client, server) == [{"kind": "beat"}, {"text": "any\n text"}]
    server.send({"id": 1})
    assert carry(server, client) == [{"id": 1}]


def test_messages_may_come_byte_by_byte() -> None:
    server, client = greeted()
    client.send({"kind": "beat"})
    found = [message for byte in bytes(client.outgoing) for message in server.feed(bytes([byte]))]
    assert found == [{"kind": "beat"}]


@pytest.mark.parametrize(("server_token", "client_token"), [("secret", "other"), ("secret", ""), ("", "secret")])
def test_both_ends_refuse_another_token(server_token: str, client_token: str) -> None:
    server, client = pair(server_token, client_token)
    carry(server, client)
    with pytest.raises(LinkError, match="token"):
        carry(client, server)
    assert not server.is_open
    with pytest.raises(LinkError, match="token"):
        carry(server, client)
    assert not client.is_open


def test_a_server_without_the_token_gets_no_message_and_none_of_its_messages_is_parsed() -> None:
    _, client = pair()
    liar = Link("other", is_server=True)
    carry(liar, client)
    with pytest.raises(LinkError, match="token"):
        client.feed(b"00" * 32 + b"\n" + b"\0" * 100)


def test_a_proof_is_worth_nothing_on_another_connection() -> None:
    server, client = pair()
    carry(server, client)
    proof = bytes(client.outgoing)
    other = Link("secret", is_server=True)
    with pytest.raises(LinkError, match="token"):
        other.feed(proof)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x80\x04cposix\nsystem\n", b"x" * 300, b"\n", b"a b c\n"])
def test_a_client_that_speaks_something_else_is_refused(data: bytes) -> None:
    server, _ = pair()
    with pytest.raises(LinkError, match=r"foreign|token"):
        server.feed(data)
    assert not server.is_open


@pytest.mark.parametrize(
    ("data", "kind"), [(b"SSH-2.0-OpenSSH_9.2\n", "foreign"), (b"phalanx hosts 2 " + b"0" * 64 + b"\n", "version")]
)
def test_a_server_of_another_kind_or_version_is_noticed(data: bytes, kind: str) -> None:
    _, client = pair()
    with pytest.raises(LinkError, match=kind):
        client.feed(data)


@pytest.mark.parametrize("position", [3, 10, -1])
def test_a_changed_message_is_not_parsed(position: int) -> None:
    server, client = greeted()
    client.send({"kind": "beat"})
    data = bytearray(client.outgoing)
    data[position] ^= 1
    if position == 3:  # the length: more bytes are needed before the signature can be looked at
        data += b"\0" * 8
    with pytest.raises(LinkError, match="damaged"):
        server.feed(bytes(data))


def test_a_message_counts_only_once_and_only_in_its_direction() -> None:
    server, client = greeted()
    client.send({"kind": "beat"})
    data = bytes(client.outgoing)
    assert server.feed(data) == [{"kind": "beat"}]
    with pytest.raises(LinkError, match="damaged"):
        server.feed(data)
    with pytest.raises(LinkError, match="damaged"):
        client.feed(data)


def test_a_message_without_a_key_of_the_session_is_not_parsed() -> None:
    server, _ = greeted()
    body = json.dumps({"kind": "accuse"}).encode()
    with pytest.raises(LinkError, match="damaged"):
        server.feed(len(body).to_bytes(4, "big") + b"\0" * 32 + body)


def test_a_stranger_can_not_announce_a_huge_message() -> None:
    server, _ = greeted()
    with pytest.raises(LinkError, match="damaged"):
        server.feed(b"\xff" * 36)

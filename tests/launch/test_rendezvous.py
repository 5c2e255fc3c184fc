from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from phalanx.launch.rendezvous import HOST, open_rendezvous


def test_two_worlds_get_different_ports_and_stores() -> None:
    with open_rendezvous() as one, open_rendezvous() as other:
        assert one.port != other.port
        assert not Path(one.store).samefile(other.store)


def test_a_program_can_listen_at_the_port_and_nobody_else_is_given_it() -> None:
    with open_rendezvous() as one:
        with socket.create_server((HOST, one.port)):
            pass
        others = [socket.socket() for _ in range(100)]
        for each in others:
            each.bind((HOST, 0))
        assert one.port not in [each.getsockname()[1] for each in others]
        for each in others:
            each.close()


def test_nothing_answers_at_the_port() -> None:
    with open_rendezvous() as one, pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, one.port))


def test_the_store_is_this_users_alone_and_leaves_nothing_behind() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with open_rendezvous() as one:
        status = os.stat(one.store)
        assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o600)
        with open(one.store, "r+b") as opened:
            assert opened.write(b"text") == 4
    assert sorted(os.listdir("/proc/self/fd")) == before

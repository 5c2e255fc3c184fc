from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from phalanx.launch import rendezvous as module
from phalanx.launch.rendezvous import HOST, Rendezvous, open_rendezvous


@pytest.fixture(autouse=True)
def _files_of_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the file alone that this process's other worlds use: these tests write into it."""
    files: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "_files", files)
    yield
    for _, descriptor in files:
        os.close(descriptor)


def test_two_worlds_get_different_ports_and_stores() -> None:
    with open_rendezvous() as one, open_rendezvous() as other:
        assert one.port != other.port
        assert _name(one) != _name(other)


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


def test_the_store_is_this_users_alone_and_the_descriptor_of_the_first_serves_all() -> None:
    with open_rendezvous() as first:
        status = os.stat(_file(first))
        assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o600)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with open_rendezvous() as one, open(_file(one), "r+b") as opened:
            assert opened.write(b"text") == 4
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_path_is_never_another_file_also_when_the_first_is_full() -> None:
    with open_rendezvous() as first:
        status = os.stat(_file(first))
    os.truncate(_file(first), 1 << 20)
    with open_rendezvous() as second:
        assert _file(second) != _file(first)
    again = os.stat(_file(first))
    assert (again.st_dev, again.st_ino) == (status.st_dev, status.st_ino)


def test_a_forked_launcher_has_a_store_of_its_own() -> None:
    with open_rendezvous() as mine, Pool(1, context=get_context("fork")) as pool:
        assert not pool.apply(_opens_the_file_of, (_file(mine),))


def _opens_the_file_of(path: str) -> bool:
    with open_rendezvous() as one:
        return Path(_file(one)).samefile(path)


def _name(rendezvous: Rendezvous) -> str:
    return rendezvous.store.partition(":")[0]


def _file(rendezvous: Rendezvous) -> str:
    return rendezvous.store.partition(":")[2]

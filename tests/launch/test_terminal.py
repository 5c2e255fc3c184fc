from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from phalanx.launch.terminal import TerminalDesk


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def desk(told: list[str]) -> Iterator[TerminalDesk]:
    desk = TerminalDesk(lambda: told.append("pause"), lambda: told.append("resume"))
    yield desk
    desk.close()


def _serve(desk: TerminalDesk) -> None:
    assert select.select([desk.descriptor()], [], [], 10)[0]
    desk.serve()


def _ask(desk: TerminalDesk) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    connection.connect(f"\0{desk.name}")
    return connection


def test_ranks_get_the_terminal_one_after_the_other(desk: TerminalDesk, told: list[str]) -> None:
    first, second = _ask(desk), _ask(desk)
    _serve(desk)
    assert first.recv(16) == b"yours"
    assert desk.is_taken
    assert not select.select([desk.descriptor()], [], [], 0)[0], "the second must wait"
    first.close()
    _serve(desk)
    assert not desk.is_taken
    _serve(desk)
    assert second.recv(16) == b"yours"
    second.close()
    _serve(desk)
    assert told == ["pause", "resume", "pause", "resume"]


def test_a_rank_that_dies_gives_it_back(desk: TerminalDesk, told: list[str]) -> None:
    program = (
        "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect('\\0{desk.name}'); s.recv(9); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", program]):
        _serve(desk)
        _serve(desk)
    assert told == ["pause", "resume"]


def test_closing_takes_it_back(told: list[str]) -> None:
    desk = TerminalDesk(lambda: told.append("pause"), lambda: told.append("resume"))
    rank = _ask(desk)
    _serve(desk)
    desk.close()
    assert told == ["pause", "resume"]
    rank.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_does_not_get_it(desk: TerminalDesk, told: list[str]) -> None:
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        connection = _ask(desk)
        os._exit(0 if connection.recv(16) == b"" else 1)
    _serve(desk)
    assert not desk.is_taken
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert told == []

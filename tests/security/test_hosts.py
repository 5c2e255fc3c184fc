"""What SECURITY.md promises of jobs on several hosts, beside what tests/launch/hosts tests."""

from __future__ import annotations

import socket
from pathlib import Path

import phalanx
from phalanx.launch.hosts.addresses import Endpoint, listen_at

_FOLDER = Path(phalanx.__file__).parent
_SPEAK_TO_OTHER_HOSTS = [
    *(_FOLDER / "launch/hosts").glob("*.py"),
    _FOLDER / "launch/board.py",
    _FOLDER / "launch/rank_server.py",
    _FOLDER / "launch/agent_line.py",
    _FOLDER / "launch/job_hosts.py",
    _FOLDER / "launch/answers.py",
    _FOLDER / "launch/watcher.py",
    _FOLDER / "groups/host_watch.py",
    _FOLDER / "torch_backend/hosts_store.py",
]


def test_nothing_that_comes_from_another_host_is_unpickled() -> None:
    assert len(_SPEAK_TO_OTHER_HOSTS) > 15
    for path in _SPEAK_TO_OTHER_HOSTS:
        text = path.read_text()
        assert not any(word in text for word in ("import pickle", "pickle.load", "marshal", "eval(", "exec(")), path
        assert "launch.connection" not in text, f"{path}: its messages are pickles"


def test_the_server_listens_at_one_address_only() -> None:
    with socket.socket() as claim:
        claim.bind(("127.0.0.1", 0))
        port = claim.getsockname()[1]
    listener = listen_at(Endpoint("127.0.0.1", port))
    assert listener is not None
    with listener:
        assert listener.getsockname() == ("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
        with socket.socket() as stranger:
            stranger.settimeout(10)
            assert stranger.connect_ex(("127.0.0.2", port)) != 0


def test_only_the_host_of_an_endpoint_listens_there() -> None:
    assert listen_at(Endpoint("192.0.2.1", 29500)) is None  # an address that is reserved for documentation

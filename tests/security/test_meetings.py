"""SECURITY.md: places where ranks meet are closed to other users, and other users can't take them first."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.engine import create_symmetric_segment
from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.groups import debugger
from phalanx.launch import user_secret
from phalanx.launch.claims import check_holder, claim_address, wait_for_address
from phalanx.launch.meeting import Gathering, MeetingResult, address_of, is_same_user, meet
from phalanx.launch.run_name import name_of_run
from phalanx.settings import read_placement
from tests.security.other_user import (
    another_user,
    read_line,
    run_as_another_user,
    started_as_another_user,
    user_namespaces,
)

_HOLDS = """
taken = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in sys.argv[1:]]
for each, name in zip(taken, sys.argv[1:]):
    each.bind(bytes.fromhex(name))
    each.listen(10)
print("ready", flush=True)
guest, _ = taken[0].accept()
guest.settimeout(10)
print("got", len(guest.recv(1 << 20)), flush=True)
"""

_KNOCKS = """
class Evil:
    def __reduce__(self):
        return (print, ("code of another user runs",))
for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    knock = socket.socket(socket.AF_UNIX, kind)
    try:
        knock.connect(bytes.fromhex(sys.argv[1]))
    except OSError:
        continue
    knock.settimeout(1)
    try:
        knock.sendall(pickle.dumps(Evil()))
        answer = knock.recv(1 << 20)
    except OSError:
        answer = b""
    print("answer", answer, flush=True)
"""


def _gathering(name: str, size: int) -> Gathering:
    return Gathering(
        name=f"a test|{name}",
        is_complete=lambda cards: len(cards) == size,
        order=sorted,
        create=lambda cards: create_symmetric_segment("test", len(cards), 10),
        describe_missing=lambda cards: f"only {sorted(cards)} came",
        timeout_s=30.0,
    )


def _in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@another_user
@pytest.mark.slow
def test_a_meeting_lets_no_other_user_in_and_reads_nothing_of_theirs(capfd: pytest.CaptureFixture[str]) -> None:
    gathering = _gathering(secrets.token_hex(8), 2)
    host, results = _in_thread(lambda: meet(gathering, 0, lambda outcome: outcome))
    address = address_of(gathering.name)
    while address[1:].decode() not in Path("/proc/net/unix").read_text():
        assert host.is_alive()
    assert run_as_another_user(_KNOCKS, address.hex()).strip() == "answer b''"
    outcomes = [meet(gathering, 1, lambda outcome: outcome)]
    host.join(30)
    outcomes += results
    assert sorted(outcome.position for outcome in outcomes if isinstance(outcome, MeetingResult)) == [0, 1]
    for outcome in outcomes:
        os.close(outcome.descriptor)
    assert "code of another user" not in capfd.readouterr().out


@another_user
@pytest.mark.slow
def test_a_place_that_another_user_holds_is_told_and_gets_nothing() -> None:
    gathering = _gathering(secrets.token_hex(8), 2)
    with started_as_another_user(_HOLDS, address_of(gathering.name).hex()) as process:
        assert read_line(process) == "ready"
        with pytest.raises(UsageError, match=r"^a test: another user holds this meeting place"):
            meet(gathering, 0, lambda outcome: outcome)
        assert read_line(process) == "got 0"


_CONNECTS = """
import phalanx
with phalanx.connect(timeout_s=20) as group:
    print(group.all_gather_object(group.rank))
"""


@another_user
@pytest.mark.slow
def test_another_user_cannot_take_the_place_of_a_job_whose_variables_it_knows() -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    guessed = "torchrun:127.0.0.1:29500:none::2#0"
    names = [address_of(f"connect|{guessed}").hex()]
    with started_as_another_user(_HOLDS, *names) as process:
        assert read_line(process) == "ready"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", _CONNECTS],
                env={**os.environ, **variables, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        told = [rank.communicate(timeout=60) for rank in ranks]
    assert [out.strip() for out, _ in told] == ["[0, 1]"] * 2, told


_TELLS_NAME = """
import sys
from phalanx.launch.run_name import name_of_run
from phalanx.settings import read_placement
sys.stdout.write(name_of_run(read_placement()) + "\\n")
"""


def _names_under_torchrun(tmp_path: Path, *options: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = tmp_path / "tells_name.py"
    script.write_text(_TELLS_NAME)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    program = [str(script)]
    if "--no-python" in options:  # a shell between torchrun and each rank
        program = ["bash", "-c", f"{sys.executable} {script}; exit $?"]
    ended = subprocess.run([*command, *options, *program], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return [name.replace(f":{port}:", ":the port:") for name in ended.stdout.split("\n") if name]


@pytest.mark.slow
def test_the_name_of_a_run_of_torchrun_is_one_for_its_ranks_and_another_in_the_next_run(tmp_path: Path) -> None:
    runs = [_names_under_torchrun(tmp_path, *options) for options in ([], ["--no-python"])]
    assert [len(names) for names in runs] == [2, 2]
    assert [len(set(names)) for names in runs] == [1, 1]
    assert runs[0][0].split("|")[0] == runs[1][0].split("|")[0] == "torchrun:127.0.0.1:the port:none:0:2"
    assert runs[0] != runs[1]


@another_user
@pytest.mark.slow
def test_ranks_whose_place_another_user_has_seen_and_taken_say_so_and_stop() -> None:
    agents = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    variables = {**agents, "GROUP_WORLD_SIZE": "2", "RANK": "0"}
    placement = read_placement(variables)
    assert placement is not None
    with started_as_another_user(_HOLDS, address_of(f"connect|{name_of_run(placement)}#0").hex()) as process:
        assert read_line(process) == "ready"
        rank = subprocess.run(
            [sys.executable, "-c", _CONNECTS],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert read_line(process) == "got 0"
    assert rank.returncode == 1
    assert "UsageError: connect: another user holds this meeting place\n" in rank.stderr


_KEEPS = """
taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
taken.bind(bytes.fromhex(sys.argv[1]))
if sys.argv[2] == "listens":
    taken.listen(10)
print("ready", flush=True)
sys.stdin.read()
"""


@another_user
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["listens", "is deaf"])
def test_a_turn_that_another_user_holds_is_told(kind: str) -> None:
    address = address_of(f"a turn|{secrets.token_hex(8)}")
    with started_as_another_user(_KEEPS, address.hex(), kind) as process:
        assert read_line(process) == "ready"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as claim:
            with pytest.raises(UsageError, match=r"^the turn: another user holds the name"):
                wait_for_address(claim, address, "the turn")


@another_user
@pytest.mark.slow
def test_a_breakpoint_whose_name_another_user_holds_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger, "_own_place", lambda: (3, "a job"))
    with started_as_another_user(_KEEPS, address_of("breakpoint|a job").hex(), "listens") as process:
        assert read_line(process) == "ready"
        with pytest.warns(RuntimeWarning, match="on rank 3 skipped: breakpoint: another user holds the name"):
            debugger.breakpoint()


def test_a_turn_passes_from_one_process_of_a_user_to_the_next() -> None:
    address = address_of(f"a turn|{secrets.token_hex(8)}")
    first, second = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    assert claim_address(first, address)
    assert not claim_address(second, address)
    check_holder(address, "the turn")
    waiting, results = _in_thread(lambda: wait_for_address(second, address, "the turn"))
    first.close()
    waiting.join(60)
    assert results == [None]
    second.close()
    check_holder(address, "the turn")


def test_the_secret_is_the_users_alone_and_everybody_of_it_gets_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home" / ".cache" / "phalanx" / "secret"
    monkeypatch.setattr(user_secret, "_place", lambda: place)
    old = os.umask(0)
    try:
        names: list[str] = []
        threads = [threading.Thread(target=lambda: names.append(user_secret.make_private("name"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.umask(old)
    assert len(names) == 8
    assert len(set(names)) == 1
    assert len(names[0]) > 60
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert [path.name for path in place.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("flaw", ["readable by others", "link", "short", "folder"])
def test_a_secret_that_others_may_know_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    place = tmp_path / "secret"
    monkeypatch.setattr(user_secret, "_place", lambda: place)
    target = tmp_path / "other" if flaw == "link" else place
    if flaw == "folder":
        place.mkdir()
    else:
        target.write_text("a" * (10 if flaw == "short" else 64))
        target.chmod(0o644 if flaw == "readable by others" else 0o600)
    if flaw == "link":
        place.symlink_to(target)
    assert user_secret.make_private("name") == "name"


def test_where_there_is_no_home_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_secret, "_place", lambda: Path("/proc/nonexistent/secret"))
    assert user_secret.make_private("name") == "name"


def test_the_two_ends_of_a_line_belong_to_the_same_user() -> None:
    for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
        assert is_same_user(each)
        each.close()


@another_user
@pytest.mark.slow
def test_a_place_whose_holder_lets_nobody_in_is_waited_for_no_longer_than_told() -> None:
    gathering = dataclasses.replace(_gathering(secrets.token_hex(8), 2), timeout_s=0.5)
    is_full = """
taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
taken.bind(bytes.fromhex(sys.argv[1]))
taken.listen(0)
knock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
knock.connect(bytes.fromhex(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""
    with started_as_another_user(is_full, address_of(gathering.name).hex()) as process:
        assert read_line(process) == "ready"
        thread, results = _in_thread(lambda: meet(gathering, 0, lambda outcome: outcome))
        thread.join(30)
        is_over = not thread.is_alive()
    thread.join(30)
    assert is_over
    assert isinstance(results[0], OperationTimeoutError)
    assert "nobody answers at the place where the ranks meet" in str(results[0])
    assert "perhaps another user holds this place" in str(results[0])


_MEETS_WITHOUT_A_NUMBER = """
import sys
sys.path.insert(0, sys.argv[1])
from phalanx.launch.meeting import meet
from tests.security.test_meetings import _gathering
print(meet(_gathering(sys.argv[2], 2), int(sys.argv[3]), lambda outcome: outcome).position)
"""


@another_user
@user_namespaces
@pytest.mark.slow
def test_where_all_users_have_one_number_a_meeting_still_lets_no_other_user_in() -> None:
    name = secrets.token_hex(8)
    command = ["unshare", "--user", sys.executable, "-c", _MEETS_WITHOUT_A_NUMBER, str(Path(__file__).parents[2]), name]
    own_number = Path("/proc/sys/kernel/overflowuid").read_text().strip()
    address = b"\0phalanx-" + hashlib.sha256(f"{own_number}:a test|{name}".encode()).hexdigest()[:40].encode()
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as host:
        while address[1:].decode() not in Path("/proc/net/unix").read_text():
            assert host.poll() is None
        assert run_as_another_user(_KNOCKS, address.hex()).strip() == "answer b''"
        guest = subprocess.run([*command, "1"], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        out, _ = host.communicate(timeout=60)
    assert (out, guest.stdout) == ("0\n", "1\n")

"""The hosts of the bed are as separate as machines, their links are as asked, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from phalanx_tools.hosts.bed import parse_rate
from tests import leftovers
from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.programs import listen, python, send, try_to_connect

pytestmark = [needs_hosts, pytest.mark.slow]

_FRAME_HEADERS = 66  # Ethernet, IPv4, TCP with timestamps
_SEGMENT_BYTES = 1448


def test_hosts_have_names_that_all_of_them_know() -> None:
    with hosts(3) as bed:
        assert [host.run("hostname").strip() for host in bed] == ["host0", "host1", "host2"]
        for host in bed:
            found = [
                python(host, "import socket, sys; print(socket.gethostbyname(sys.argv[1]))", f"host{n}")
                for n in range(3)
            ]
            assert found == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]


def test_a_host_may_find_its_own_name_at_loopback() -> None:
    with hosts(2, has_loopback_names=True) as bed:
        lines = bed[1].run("cat", "/etc/hosts").splitlines()
        assert lines == ["127.0.0.1 localhost", "10.77.0.1 host0", "127.0.1.1 host1"]


def test_hosts_see_neither_processes_nor_memory_nor_abstract_sockets_of_each_other() -> None:
    with hosts(2) as bed:
        with bed[0].start(
            sys.executable, "-Ic", _OCCUPANT, "occupant", stdout=subprocess.PIPE, stdin=subprocess.PIPE
        ) as occupant:
            assert occupant.stdout is not None
            pid = int(occupant.stdout.readline())
            seen = [python(host, _LOOK_AROUND, pid) for host in bed]
            occupant.kill()
        assert seen == ["occupant socket memory", ""]


_OCCUPANT = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("\\0phalanx-test-of-hosts")
server.listen()
open("/dev/shm/phalanx-test-of-hosts", "w").close()
print(os.getpid(), flush=True)
input()
"""
_LOOK_AROUND = """
import os, socket, sys
found = []
place = f"/proc/{sys.argv[1]}/cmdline"
if os.path.exists(place) and open(place).read().endswith(chr(0) + "occupant" + chr(0)):
    found.append("occupant")
try:
    socket.socket(socket.AF_UNIX).connect("\\0phalanx-test-of-hosts")
    found.append("socket")
except OSError:
    pass
if os.path.exists("/dev/shm/phalanx-test-of-hosts"):
    found.append("memory")
print(*found)
"""


def test_a_command_has_the_folder_the_environment_and_the_exit_code_of_its_caller(tmp_path: Path) -> None:
    with hosts(1) as bed:
        shown = bed[0].run("sh", "-c", "pwd; echo $WORD", cwd=tmp_path, env=os.environ | {"WORD": "hello"})
        assert shown == f"{tmp_path}\nhello\n"
        for script, code in (("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)):
            assert bed[0].start("sh", "-c", script).wait(20) == code


def test_a_signal_reaches_the_command() -> None:
    script = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    with hosts(1) as bed, bed[0].start("sh", "-c", script, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(20) == 7


def test_a_command_ends_with_the_process_that_runs_it() -> None:
    with hosts(1) as bed, bed[0].start("sh", "-c", "echo $$; exec sleep 600", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        process.kill()
        gone = f"import os, sys; sys.exit(os.path.exists('/proc/{pid}'))"
        assert leftovers.wait_until(lambda: bed[0].start(sys.executable, "-Ic", gone).wait(20) == 0)


@pytest.mark.parametrize(("rate", "count"), [("1gbit", 32 << 20), ("100mbit", 4 << 20)])
def test_rate_delay_and_bytes_are_as_asked(rate: str, count: int) -> None:
    """On a busy machine a link can only be slower, so the best of some tries counts."""
    with hosts(2, rate=rate, delay_us=500) as bed:
        trips, achieved = [], []
        for _ in range(4):
            before = bed[1].bytes_sent()
            with listen(bed[0]):
                trip_s, took_s = send(bed[1], bed[0], count)
            trips.append(trip_s)
            achieved.append(count * 8 / took_s / parse_rate(rate))
            sent = bed[1].bytes_sent() - before
            # Segments leave a host together, with one header; a few are sent twice.
            assert count < sent < count * (1 + _FRAME_HEADERS / _SEGMENT_BYTES) * 1.01
        assert 1.0e-3 <= min(trips) < 2.5e-3
        assert 0.8 < max(achieved) <= 1.03


def test_a_cut_cable_is_seen_by_its_host_and_stops_everything() -> None:
    with hosts(3) as bed:
        with listen(bed[0]) as receiver:
            bed[1].cut()
            assert try_to_connect(bed[1], bed[0], 0.5) != "connected"
            assert try_to_connect(bed[0], bed[1], 0.5) != "connected"
            carriers = [host.run("cat", "/sys/class/net/eth0/carrier").strip() for host in bed]
            assert carriers == ["1", "0", "1"]
            bed[1].mend()
            assert bed[1].run("cat", "/sys/class/net/eth0/carrier").strip() == "1"
            send(bed[1], bed[0], 1000)
            receiver.wait(20)
        with listen(bed[0]):
            bed[1].cut()
            send(bed[2], bed[0], 1000)  # the others go on


def test_lost_packets_are_seen_by_nobody_and_stop_everything() -> None:
    with hosts(2) as bed, listen(bed[0]):
        bed[1].lose_packets()
        assert try_to_connect(bed[1], bed[0], 0.5) == "TimeoutError"
        assert bed[1].run("cat", "/sys/class/net/eth0/carrier").strip() == "1"
        assert bed[1].bytes_sent() == 0
        bed[1].pass_packets()
        send(bed[1], bed[0], 1000)


def test_a_host_without_power_ends_at_once_and_says_nothing() -> None:
    """Its peer's connection stays open: the peer gets no end and no reset."""
    with hosts(2) as bed:
        with bed[1].start(sys.executable, "-Ic", _SILENT_PEER, stdout=subprocess.PIPE) as peer:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "listening\n"
            watcher = bed[0].start(sys.executable, "-Ic", _WATCHER, stdout=subprocess.PIPE)
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "connected\n"
            bed[1].power_off()
            assert peer.wait(20) == -signal.SIGKILL
            assert watcher.communicate(timeout=20)[0] == "silence\n"
        assert bed[0].run("echo", "alive") == "alive\n"


_SILENT_PEER = """
import socket
server = socket.create_server(("", 5001))
print("listening", flush=True)
server.accept()[0].recv(1)
"""
_WATCHER = """
import socket
connection = socket.create_connection(("host1", 5001), 10)
print("connected", flush=True)
connection.settimeout(1)
try:
    print("end" if connection.recv(1) == b"" else "data")
except TimeoutError:
    print("silence")
except OSError as error:
    print(error)
"""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable that everything started from here has: other people may have hosts on this machine, too."""
    mark = f"STARTED_BY={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))
    return mark


def _processes_with(mark: str) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:  # it ended while we looked
            continue
    return found


def test_nothing_is_left_of_hosts(mark: str) -> None:
    children, descriptors = set(leftovers.children(os.getpid())), leftovers.open_descriptors()
    with hosts(2) as bed:
        bed[0].run("sh", "-c", "sleep 600 >&- & setsid sleep 600 >&- &")
        # The keeper; a parent and an init for the switch and for each host; the switch itself; what runs on host 0.
        assert len(_processes_with(mark)) == 1 + 2 * 3 + 1 + 2
    assert set(leftovers.children(os.getpid())) == children
    assert leftovers.open_descriptors() == descriptors
    assert not _processes_with(mark)


def test_nothing_is_left_of_hosts_whose_owner_is_killed(mark: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert len(_processes_with(mark)) > 8
        owner.kill()
    assert leftovers.wait_until(lambda: not _processes_with(mark))


_OWNER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "tools")!r})
from phalanx_tools.hosts.bed import hosts
with hosts(2) as bed:
    bed[1].start("sh", "-c", "setsid sleep 600 & echo up; sleep 600").wait()
"""


def test_an_owner_that_raises_leaves_nothing(mark: str) -> None:
    with pytest.raises(ZeroDivisionError), hosts(2):
        raise ZeroDivisionError
    assert not _processes_with(mark)


def test_what_is_no_rate_is_refused() -> None:
    assert [parse_rate(text) for text in ("1gbit", "2.5mbit", "64000")] == [1e9, 2.5e6, 64e3]
    for text in ("fast", "0", "-1gbit", "nan"):
        with pytest.raises(ValueError):
            parse_rate(text)

"""SECURITY.md, "What root's tools do": root looks at processes of another user, who may be hostile."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from phalanx.diagnosis import asking, observer
from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.job_list import choose_job, find_jobs
from phalanx.diagnosis.memory_files import memory_files, open_memory_file
from phalanx.diagnosis.observation import Observation, observe
from phalanx.diagnosis.processes import is_of_this_user, owner_of
from phalanx.diagnosis.report import render
from phalanx.diagnosis.signals_as_owner import OwnersSignals, SignalsByOwner
from phalanx.diagnosis.stacks import STACK_SIGNAL
from phalanx.engine import create_group_segment
from tests.security.other_user import (
    UID,
    another_user,
    give,
    let_others_in,
    read_line,
    run_as_another_user,
    started_as_another_user,
)

_TRIES = 100  # a version without the check was caught within 3

_GETS_READY = """
place = os.open("/dev/null", os.O_RDONLY)  # the first of its descriptors, which is looked at first
memory = os.memfd_create(f"phalanx-stacks:{os.getpid()}")
os.write(memory, b"x" * (1 << 17))  # so much that an asker would like to empty it
faulthandler.register(signal.SIGRTMIN + 7, file=os.dup(memory), all_threads=False)
"""

# Swaps two files under one descriptor: its memory, and one that it may only read.
_SWAPS = f"""{_GETS_READY}
other = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
print(os.getpid(), flush=True)
while True:
    os.dup2(other, place)
    os.dup2(memory, place)
"""

_STANDS = f"""{_GETS_READY}
def stand():
    print(os.getpid(), flush=True)
    sys.stdin.read()
stand()
"""


@another_user
@pytest.mark.slow
def test_a_file_put_in_the_place_of_a_memory_file_is_neither_written_nor_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep me" * 100_000)
    precious.chmod(0o644)
    let_others_in(tmp_path)
    before = precious.stat()
    with started_as_another_user(_SWAPS, str(precious)) as process:
        pid = int(read_line(process))
        for _ in range(_TRIES):
            ask_for_stacks([pid], timeout_s=0.01)
    after = precious.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@another_user
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_neither_a_pipe_nor_a_device_in_that_place_is_opened(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/null")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
        path.chmod(0o644)
    let_others_in(tmp_path)
    start = time.monotonic()
    with started_as_another_user(_SWAPS, str(path)) as process:
        pid = int(read_line(process))
        for _ in range(_TRIES):
            for found in memory_files(pid, "phalanx"):
                descriptor = open_memory_file(found)
                if descriptor is not None:
                    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:phalanx-stacks")
                    os.close(descriptor)
    assert time.monotonic() - start < 60


@another_user
@pytest.mark.slow
def test_root_reads_the_stacks_of_another_users_process_without_writing_into_its_memory() -> None:
    with started_as_another_user(_STANDS) as process:
        pid = int(read_line(process))
        assert " in stand" in ask_for_stacks([pid], timeout_s=10)[pid]
        memory = next(memory_files(pid, "phalanx-stacks"))
        assert memory.owner == UID
        assert not memory.is_ours
        assert open_memory_file(memory, is_writable=True) is None
        descriptor = open_memory_file(memory)
        assert descriptor is not None
        text = os.pread(descriptor, 1 << 20, 0)
        os.close(descriptor)
    assert text.startswith(b"x" * (1 << 17) + b"Stack"), "only the process itself has written there"


@another_user
@pytest.mark.slow
def test_a_lock_that_another_user_holds_delays_root_only_for_the_time_it_has() -> None:
    locks = _STANDS.replace("def stand", "fcntl.flock(memory, fcntl.LOCK_EX)\ndef stand")
    with started_as_another_user(locks) as process:
        pid = int(read_line(process))
        start = time.monotonic()
        assert ask_for_stacks([pid], timeout_s=0.2) == {}
        assert time.monotonic() - start < 40


@another_user
@pytest.mark.slow
def test_a_process_that_only_says_that_it_answers_is_not_signalled() -> None:
    says_so = """
memory = os.memfd_create(f"phalanx-stacks:{os.getpid()}")
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    with started_as_another_user(says_so) as process:
        pid = int(read_line(process))
        assert ask_for_stacks([pid], timeout_s=0.2) == {}
        give(process, b"")
        assert process.wait(60) == 0, "a signal without a handler would have ended it"


@another_user
def test_a_signal_reaches_only_what_the_owner_of_the_process_may_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as ours:
        signals = OwnersSignals(UID)
        try:
            assert not signals.send(ours.pid, ours.pid, STACK_SIGNAL)
        finally:
            signals.close()
        assert ours.poll() is None
        ours.kill()
    assert ours.returncode == -signal.SIGKILL, "the signal of phalanx would have ended it first"


@another_user
@pytest.mark.slow
def test_a_process_that_has_become_roots_after_the_check_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_as_another_user(_STANDS) as process, subprocess.Popen(["sleep", "60"]) as ours:
        pid = int(read_line(process))
        signals = SignalsByOwner()
        question = asking._Question(pid, [pid], signals)
        question.pid = ours.pid  # as if the process had become another one
        monkeypatch.setattr(asking, "owner_of", lambda pid: UID)
        assert not question._signal_twice(ours.pid)
        question.close()
        signals.close()
        assert ours.poll() is None
        ours.kill()
    assert ours.returncode == -signal.SIGKILL


@another_user
def test_a_child_that_the_other_user_stops_is_not_waited_for() -> None:
    signals = SignalsByOwner()
    assert not signals.send(UID, os.getpid(), os.getpid(), 0)  # it is ready
    child = signals._by_user[UID]
    assert child is not None
    run_as_another_user("os.kill(int(sys.argv[1]), signal.SIGSTOP)", str(child._child))
    with pytest.raises(TimeoutError):
        signals.send(UID, os.getpid(), os.getpid(), 0)
    with pytest.raises(ProcessLookupError):
        signals.send(UID, os.getpid(), os.getpid(), 0)
    signals.close()


_HAS_A_GROUP = """
content = sys.stdin.buffer.read()
memory = os.memfd_create("phalanx:made by hand", os.MFD_ALLOW_SEALING)
os.truncate(memory, len(content))
os.pwrite(memory, content, 0)
if sys.argv[1] == "sealed":
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
record = os.memfd_create("phalanx-job")
os.write(record, sys.argv[2].encode())
print(os.getpid(), flush=True)
signal.pause()
"""


def _look_at_group_of_another_user(content: bytes, *, seal: str = "sealed", record: str = "{}") -> Observation:
    with started_as_another_user(_HAS_A_GROUP, seal, record) as process:
        give(process, content)
        pid = int(read_line(process))
        (job,) = [job for job in find_jobs() if pid in job.pids]
        seen = observe(sorted(job.pids), job.record)
        seen.notes.append(job.title())
    return seen


def _content_of_group(name: str, why_broken: str) -> bytes:
    group = create_group_segment(name, 2, crowd=2)
    group.fail(1, why_broken)
    content = os.pread(group.descriptor, group.size_bytes, 0)
    group.close_descriptor()
    return content


@another_user
@pytest.mark.slow
def test_what_another_user_calls_things_does_not_steer_the_terminal() -> None:
    content = _content_of_group("\x1b[31mred\nfaked line", "\x1b]0;title\x07 it failed")
    record = '{"name": "job\\u001b[2J\\nfaked line", "command": ["a\\u009b31m"]}'
    shown = render(_look_at_group_of_another_user(content, record=record))
    assert 'group "\\x1b[31mred\\nfaked line" is broken' in shown
    assert 'job "job\\x1b[2J\\nfaked line"' in shown
    assert not any(line.startswith("faked") for line in shown.splitlines())
    assert not set("\x1b\x07\x9b").intersection(shown)


@another_user
@pytest.mark.slow
def test_a_group_that_its_owner_can_cut_is_not_read() -> None:
    seen = _look_at_group_of_another_user(_content_of_group("open", "why"), seal="open")
    assert seen.groups == []
    assert any("can't be read" in note for note in seen.notes)


def test_no_more_ranks_are_looked_at_than_a_job_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_MOST_RANKS", 5)
    groups = [create_group_segment(f"group {number}", 2, crowd=2) for number in range(4)]
    try:
        seen = observe([os.getpid()], with_stacks=False)
    finally:
        for group in groups:
            group.close_descriptor()
    assert sum(group.num_ranks for group in seen.groups) <= 5
    assert any(note.startswith("2 groups can't be read: ") and note.endswith("too many") for note in seen.notes)


@another_user
@pytest.mark.slow
@pytest.mark.parametrize(
    "record",
    ['{"pids": [1], "name": "mine"}', '{"pids": [[]]}', "[" * 100_000, '{"pids": 5}', "[]", '{"pids": [1e400]}'],
)
def test_what_a_launcher_says_may_be_anything_and_counts_for_processes_of_its_own_user_only(record: str) -> None:
    seen = _look_at_group_of_another_user(bytes(4096), record=record)
    assert len(seen.processes) == 1
    assert seen.processes[0].pid != 1


# A child leaves the machine's folders for one of its own, in which a file is called as a memory file is. It gives that
# file to its parent, which becomes a program that has the rights of root.
_FORGES = f"""
CLONE_NEWNS, CLONE_NEWUSER, MS_REC_PRIVATE, MNT_DETACH, PIVOT_ROOT = 0x20000, 0x10000000, 0x44000, 2, 155
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) != 0:
        os._exit(0)
ours, theirs = socket.socketpair()
if os.fork() == 0:
    call(libc.unshare, CLONE_NEWNS | CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 {UID} 1"), ("gid_map", "0 {UID} 1")):
        with open(f"/proc/self/{{name}}", "w") as file:
            file.write(text)
    call(libc.mount, b"none", b"/", None, MS_REC_PRIVATE, None)
    call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None)
    os.chdir("/tmp")
    call(libc.syscall, PIVOT_ROOT, b".", b".")
    call(libc.umount2, b".", MNT_DETACH)
    socket.send_fds(theirs, [b"."], [os.open("/memfd:phalanx:forged", os.O_RDWR | os.O_CREAT)])
    os._exit(0)
theirs.close()
_, given, _, _ = socket.recv_fds(ours, 1, 1)
for each in given:
    os.set_inheritable(each, True)
    print(os.getpid(), flush=True)
    os.execv(sys.argv[1], ["sleep", "60"])
print(0, flush=True)
"""


@another_user
@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows the numbers of this machine's system calls only")
def test_a_program_that_another_user_has_started_is_not_taken_for_roots_own(tmp_path: Path) -> None:
    program = tmp_path / "sleep"
    shutil.copy(str(shutil.which("sleep")), program)
    program.chmod(0o4755)
    let_others_in(tmp_path)
    with started_as_another_user(_FORGES, str(program)) as process:
        pid = int(read_line(process))
        if pid == 0 or os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
            pytest.skip("needs user namespaces, and programs that have the rights of root")
        while owner_of(pid) != 0:
            assert process.poll() is None
        assert "/memfd:phalanx:forged" in [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert not is_of_this_user(pid)
        assert list(memory_files(pid, "phalanx")) == []


_HAS_A_RECORD = """
record = os.memfd_create("phalanx-job")
os.write(record, sys.argv[1].encode())
print(os.getpid(), flush=True)
signal.pause()
"""


@another_user
@pytest.mark.slow
@pytest.mark.parametrize("claim", ["pid", "name"])
def test_another_users_job_does_not_answer_to_the_number_of_our_process(claim: str) -> None:
    group = create_group_segment("ours", 2, crowd=2)
    ours = os.getpid()
    record = {"pid": {"pid": ours, "name": "theirs"}, "name": {"name": str(ours)}}[claim]
    with started_as_another_user(_HAS_A_RECORD, json.dumps(record)) as process:
        pid = int(read_line(process))
        assert choose_job(str(ours)).pids == {ours}
        (theirs,) = [job for job in find_jobs() if pid in job.pids]
        assert theirs.title().startswith(f"pid {pid} ")
    group.close_descriptor()


def test_a_descriptor_that_stands_for_another_file_by_now_is_not_opened() -> None:
    name = "phalanx-probe-of-a-test"
    mine = os.memfd_create(name)
    found = next(memory_files(os.getpid(), name))
    descriptor = open_memory_file(found, is_writable=True)
    assert descriptor is not None
    assert os.write(descriptor, b"text") == 4
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(descriptor)
    other = os.memfd_create(name)
    os.dup2(other, mine)
    assert open_memory_file(found) is None
    os.close(other)
    os.close(mine)
    assert open_memory_file(found) is None
    assert list(memory_files(os.getpid(), name)) == []


@another_user
@pytest.mark.slow
def test_another_user_can_neither_list_nor_open_the_memory_of_a_job() -> None:
    group = create_group_segment("private", 2, crowd=2)
    assert os.fstat(group.descriptor).st_mode & 0o777 == 0o600
    program = f"""
for open_it in (os.listdir, lambda folder: os.open(f"{{folder}}/{group.descriptor}", os.O_RDONLY)):
    try:
        open_it("/proc/{os.getpid()}/fd")
    except PermissionError:
        print("refused")
"""
    assert run_as_another_user(program).split() == ["refused", "refused"]

"""Asking processes for their stacks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.findings import place_of
from phalanx.diagnosis.processes import threads_of
from phalanx.diagnosis.stacks import find_program, parse_frame, parse_stacks, stack_of
from phalanx.diagnosis.views import ProcessView
from tests.diagnosis.observations import stacks
from tests.leftovers import wait_until

_GETS_READY = r"""
import os, sys, threading
from phalanx.diagnosis.stacks import answer_with_stacks, create_stack_memory

def stand():
    os.write(1, f"{os.getpid()}\n".encode())
    sys.stdin.read()
"""


@contextlib.contextmanager
def _running(script: str, num_processes: int = 1) -> Iterator[list[int]]:
    with subprocess.Popen(
        [sys.executable, "-c", _GETS_READY + script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield [int(process.stdout.readline()) for _ in range(num_processes)]
        process.communicate()


def test_a_process_that_got_ready_answers_and_one_that_did_not_is_left_alone() -> None:
    with _running("answer_with_stacks(); answer_with_stacks(); stand()") as ready, _running("stand()") as unready:
        answers = ask_for_stacks([*ready, *unready, 1], timeout_s=20)
        assert list(answers) == ready
        assert " in stand" in answers[ready[0]]
        assert " in stand" in ask_for_stacks(ready, timeout_s=20)[ready[0]], "and again"


def test_files_and_functions_of_any_name_are_read_as_they_are_called(tmp_path: Path) -> None:
    folder = tmp_path / 'with spaces, "quotes" and ünïcode 漢字 😀'
    folder.mkdir()
    (folder / "été.py").write_text("def größe(go_on):\n    go_on()\n")
    script = f"answer_with_stacks(); sys.path.insert(0, {str(folder)!r}); import été; été.größe(stand)"
    with _running(script) as pids:
        (thread,) = parse_stacks(ask_for_stacks(pids, timeout_s=20)[pids[0]])
    assert [(frame.file, frame.line) for frame in thread.frames if frame.function == "größe"] == [
        (str(folder / "été.py"), 2)
    ]


def test_bytes_of_a_file_name_that_are_no_text_stay_escaped() -> None:
    frame = parse_frame(r'  File "/a\udcff\x0a\xe9/b.py", line 3 in f')
    assert frame is not None
    assert frame.file == r"/a\udcff\x0aé/b.py"


def test_a_forked_child_answers_only_when_it_gets_ready_itself_and_in_its_own_memory() -> None:
    script = """
answer_with_stacks()
def be_child():
    stand()
if os.fork() == 0:
    if is_ready:
        answer_with_stacks()
    be_child()
    os._exit(0)
stand()
"""
    with _running(f"is_ready = False\n{script}", 2) as pids:
        answers = ask_for_stacks(pids, timeout_s=20)
        assert len(answers) == 1
        assert "be_child" not in next(iter(answers.values()))
    with _running(f"is_ready = True\n{script}", 2) as pids:
        answers = ask_for_stacks(pids, timeout_s=20)
        assert sorted(answers) == sorted(pids)
        assert sorted("be_child" in text for text in answers.values()) == [False, True]


def test_memory_that_was_given_is_found_among_that_of_others() -> None:
    script = "others = [create_stack_memory() for _ in range(3)]; answer_with_stacks(create_stack_memory()); stand()"
    with _running(script) as pids:
        assert list(ask_for_stacks(pids, timeout_s=20)) == pids


def test_threads_that_are_named_are_asked_too_and_ended_ones_left_out() -> None:
    script = """
def wait(stop):
    answer_with_stacks()
    ready.release()
    stop.wait()
stop, ready = threading.Event(), threading.Semaphore(0)
threads = [threading.Thread(target=wait, args=(stop,)) for _ in range(5)]
[thread.start() for thread in threads]
[ready.acquire() for _ in threads]
os.write(1, (" ".join(str(thread.native_id) for thread in threads) + "\\n").encode())
stand()
stop.set()
"""
    with subprocess.Popen(
        [sys.executable, "-c", _GETS_READY + script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        threads = [int(word) for word in process.stdout.readline().split()]
        process.stdout.readline()
        found = parse_stacks(ask_for_stacks([process.pid], {process.pid: [*threads, 1]}, timeout_s=20)[process.pid])
        assert [thread.ident for thread in found] == [process.pid, *threads]
        assert ["wait" in str(thread.frames) for thread in found] == [False, *[True] * 5]
        process.communicate()


def test_a_thread_without_python_code_is_not_waited_for() -> None:
    script = """
answer_with_stacks()
import ctypes
library, number = ctypes.CDLL(None), ctypes.c_ulong()
assert library.pthread_create(ctypes.byref(number), None, library.pause, None) == 0
stand()
os._exit(0)
"""
    with _running(script) as pids, ThreadPoolExecutor(1) as askers:
        threads = threads_of(pids[0])
        assert len(threads) == 2
        answers = askers.submit(ask_for_stacks, pids, {pids[0]: threads[::-1]}, timeout_s=1000)
        assert [thread.ident for thread in parse_stacks(answers.result(100)[pids[0]])] == pids


@pytest.mark.slow
def test_asking_does_not_hurt_a_process_whose_threads_come_and_go() -> None:
    script = """
answer_with_stacks()
def churn():
    while not stop.is_set():
        thread = threading.Thread(target=sum, args=(range(100),))
        thread.start()
        thread.join()
stop = threading.Event()
threads = [threading.Thread(target=churn) for _ in range(4)]
[thread.start() for thread in threads]
stand()
stop.set()
"""
    with _running(script) as pids:
        for _ in range(200):
            assert list(ask_for_stacks(pids, {pids[0]: threads_of(pids[0])}, timeout_s=20)) == pids


def test_many_who_ask_at_once_all_get_the_answer() -> None:
    with _running("answer_with_stacks(); stand()") as pids, ThreadPoolExecutor(16) as askers:
        answers = list(askers.map(lambda _: ask_for_stacks(pids, timeout_s=20), range(64)))
    assert all(" in stand" in answer[pids[0]] for answer in answers)


def test_nobody_waits_for_the_answer_of_a_process_that_has_ended() -> None:
    script = "answer_with_stacks(); signal.pthread_sigmask(signal.SIG_BLOCK, [STACK_SIGNAL]); stand()"
    with ThreadPoolExecutor(1) as askers:
        with _running(f"import signal; from phalanx.diagnosis.stacks import STACK_SIGNAL; {script}") as pids:
            answers = askers.submit(ask_for_stacks, pids, timeout_s=1000)
            assert wait_until(lambda: _was_asked(pids[0]))
        assert answers.result(100) == {}


def _was_asked(pid: int) -> bool:
    files = [file for file in Path(f"/proc/{pid}/fd").iterdir() if "phalanx-stacks" in str(file.readlink())]
    return any(b"@" in file.read_bytes() for file in files)


_OWN = "/home/me/train.py"
_PACKAGE = "/usr/lib/python3/dist-packages/titan/train.py"
_TORCH = "/usr/lib/python3/dist-packages/torch/nn.py"
_PYTHON = "/usr/lib/python3.11/weakref.py"
_COMPILED = "/tmp/torchinductor_me/yw/cywgve5kxzuolz3hz4tzliz2tqk4v5vvayhoietraugpkdhucikk.py"
_RUNPY = "<frozen runpy>"


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ([_PYTHON, _TORCH, _OWN, _PACKAGE, _OWN], [2, 4]),
        ([_PACKAGE, _OWN, "<string>"], [1]),
        ([_COMPILED, _TORCH, _OWN], [2]),
        ([_TORCH, _PACKAGE, _RUNPY, _OWN], [1]),
        ([_TORCH, _OWN, _PACKAGE, _RUNPY, _OWN], [1]),
        ([_TORCH, _PYTHON, _RUNPY, _OWN], [3]),
        ([_TORCH, _PACKAGE], [1]),
        (["<frozen abc>", _PYTHON, _TORCH], []),
    ],
)
def test_the_calls_of_the_program_are_found(files: list[str], chosen: list[int]) -> None:
    assert find_program(files) == chosen


@pytest.mark.parametrize("file", ["<frozen abc>", "<internal>"])
def test_a_process_without_a_line_of_the_program_is_at_no_line(file: str) -> None:
    process = ProcessView(77, "S", 0, [], stacks((file, 7, "cleanup"), (_PYTHON, 9, "<listcomp>")))
    assert place_of(process) == ""


def test_what_faulthandler_wrote_is_read() -> None:
    text = stacks(("/a/b/c.py", 3, "f"), ("/a/b/c.py", 9, "<module>"), is_main=False, ident=70) + stacks(ident=71)
    text += "Thread 0x46 (most recent call first):\n  <no Python frame>\nnoise\n"
    threads = parse_stacks("noise\n" + text)
    assert [(thread.ident, thread.is_current, len(thread.frames)) for thread in threads] == [
        (70, False, 0),
        (71, True, 0),
    ], "the last about each thread counts"
    assert str(parse_stacks(text.partition("Thread 0x46")[0])[0].frames[0]) == "b/c.py:3 in f"
    assert parse_stacks("") == []
    assert stack_of(threads, 70) is threads[0]
    assert stack_of(threads, 5) is threads[1], "else the one that answered"

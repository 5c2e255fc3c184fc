"""Asking running processes where they stand.

    asker                                       process
    lock its memory file (opened through /proc)
    append "@<thread> <time>"
    signal the thread, twice               -->  its handler appends the stack, twice
    read the first; it is whole when the second has begun

The lock keeps askers apart: many ranks may ask for the same late one at once, and then the second takes what the first
was told. Processes that are not ready, or stopped, are never signalled: a signal that nobody catches would end them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Mapping

from phalanx.diagnosis.processes import catches, memory_files, state_of
from phalanx.diagnosis.stacks import MEMORY_NAME, STACK_SIGNAL
from phalanx.engine import signal_thread

_KEPT_BYTES = 1 << 16
_POLL_S = 0.002
_FRESH_S = 0.3  # so old an answer is as good as a new one
_ANSWER = "Stack (most recent call first):\n"


def ask_for_stacks(
    pids: Iterable[int], threads: Mapping[int, Iterable[int]] | None = None, *, timeout_s: float = 0.5
) -> dict[int, str]:
    """Return where the main threads of processes stand; those that do not answer in time are left out.

    Args:
        pids: The processes.
        threads: Which other threads of them to ask too, as the kernel counts.
        timeout_s: How long to wait for all of them together.
    """
    deadline = time.monotonic() + timeout_s
    questions = []
    for pid in dict.fromkeys(pids):
        path = _path_of_answer(pid)
        if path is not None and state_of(pid) not in ("T", "t", "Z", "") and catches(pid, STACK_SIGNAL):
            with contextlib.suppress(OSError):  # it has ended
                questions.append(_Question(pid, dict.fromkeys([pid, *((threads or {}).get(pid, ()))]), path))
    try:
        open_questions = questions
        while time.monotonic() < deadline:
            open_questions = [question for question in open_questions if _goes_on(question)]
            if not open_questions:
                break
            time.sleep(_POLL_S)
        return {question.pid: text for question in questions if (text := _text_of(question))}
    finally:
        for question in questions:
            question.close()


def _goes_on(question: _Question) -> bool:
    try:
        return question.go_on()
    except OSError:  # this process can't be asked: others can
        return False


def _text_of(question: _Question) -> str:
    try:
        return question.text()
    except OSError:
        return ""


def _path_of_answer(pid: int) -> str | None:
    """Return where a process will write; None when it is not ready itself."""
    own = f"{MEMORY_NAME}:{pid}"
    files = list(memory_files(pid, MEMORY_NAME))
    given = [found.name.removeprefix(f"{own}:") for found in files if found.name.startswith(f"{own}:")]
    if given:
        return next((found.path for found in files if str(found.identity[1]) == given[-1]), None)
    return next((found.path for found in files if found.name == own), None)


class _Question:
    """The threads of one process, asked one after the other: an answer does not say whose it is."""

    def __init__(self, pid: int, threads: Iterable[int], path: str) -> None:
        self.pid = pid
        self._threads = list(threads)
        self._answers: dict[int, str] = {}
        self._is_locked = False
        self._start = -1  # of the answer that is awaited
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def go_on(self) -> bool:
        """Do what can be done without waiting; return whether there is more."""
        if not self._is_locked and not self._lock():
            return True
        while self._threads:
            if self._start < 0 and not self._ask():
                continue
            answer = self._read()
            if answer is None:
                return True
            self._answers[self._threads.pop(0)] = answer
            self._start = -1
        self._unlock()
        return False

    def text(self) -> str:
        """Return all answers, each under the number of its thread; also one that has not come to its end."""
        if self._threads and self._start >= 0:
            self._answers[self._threads[0]] = self._read_all(self._start).partition(_ANSWER)[2]
        return "".join(
            f"{'Current thread' if thread == self.pid else 'Thread'} {thread:#x} (most recent call first):\n{answer}\n"
            for thread, answer in self._answers.items()
            if answer
        )

    def close(self) -> None:
        """Let others ask."""
        os.close(self._file)

    def _lock(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_locked = True
            self._take_fresh_answers()
            if os.fstat(self._file).st_size > _KEPT_BYTES:
                os.ftruncate(self._file, 0)
        return self._is_locked

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take_fresh_answers(self) -> None:
        """Use what somebody else was told a moment ago."""
        for record in self._read_all(0).split("\n@")[1:] if self._threads else ():
            head, _, rest = record.partition("\n")
            thread, _, when_ns = head.partition(" ")
            is_fresh = when_ns.isdigit() and time.monotonic_ns() - int(when_ns) < _FRESH_S * 1e9
            if is_fresh and thread.isdigit() and int(thread) in self._threads and rest.count(_ANSWER) > 1:
                self._answers[int(thread)] = rest.split(_ANSWER)[1]
        self._threads = [thread for thread in self._threads if thread not in self._answers]

    def _ask(self) -> bool:
        thread = self._threads[0]
        os.write(self._file, f"\n@{thread} {time.monotonic_ns()}\n".encode())
        self._start = os.fstat(self._file).st_size
        is_ready = catches(self.pid, STACK_SIGNAL)  # once more: it may run another program by now
        if is_ready and self._signal_twice(thread):
            return True
        self._threads.pop(0)  # the thread has ended
        self._start = -1
        return False

    def _signal_twice(self, thread: int) -> bool:
        is_there = signal_thread(self.pid, thread, STACK_SIGNAL)
        return is_there and signal_thread(self.pid, thread, STACK_SIGNAL)

    def _read(self) -> str | None:
        """Return the answer, if it is whole: a second one has begun."""
        parts = self._read_all(self._start).split(_ANSWER)
        return parts[1] if len(parts) > 2 else None

    def _read_all(self, start: int) -> str:
        size = os.fstat(self._file).st_size
        return os.pread(self._file, max(0, size - start), start).decode(errors="replace")

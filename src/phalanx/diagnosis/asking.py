"""Ask running processes for the stacks of their threads.

    asker                                       process
    lock its memory file (opened through /proc)
    append "@<thread> <time>"
    signal the thread, twice               -->  its handler appends the stack, twice
    read the first; it is whole when the second has begun

A thread without Python code writes nothing. If it has handled both signals and nothing is there, it is left out.

The lock lets one process ask at a time. Many ranks may ask the same late rank at once; then the second one uses the
answer that the first one got. A process that is not ready, or is stopped, gets no signal, because a signal that it does
not catch would end it. Nothing is written into a file of another user: the superuser only lets that user's rights send
the signal, and reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import time
from collections.abc import Iterable, Mapping

from phalanx.diagnosis.memory_files import MemoryFile, memory_files, open_memory_file
from phalanx.diagnosis.processes import blocks, catches, has_waiting, owner_of, state_of
from phalanx.diagnosis.signals_as_owner import SignalsByOwner
from phalanx.diagnosis.stacks import MEMORY_NAME, STACK_SIGNAL
from phalanx.engine import signal_thread

_KEPT_BYTES = 1 << 16
_MOST_BYTES = 1 << 24  # the size of a file that this process may not empty
_LONGEST_ANSWER = 1 << 18
_MOST_THREADS = 1 << 10
_LARGEST_THREAD = 1 << 22  # the kernel's own limit; what a memory file says may be anything
_NOTE = re.compile(r"([0-9]{1,9}) ([0-9]{1,19})")
_POLL_S = 0.002
_FRESH_S = 0.3  # an answer of this age is as good as a new one
_ANSWER = "Stack (most recent call first):\n"


def ask_for_stacks(
    pids: Iterable[int], threads: Mapping[int, Iterable[int]] | None = None, *, timeout_s: float = 0.5
) -> dict[int, str]:
    """Return the stacks of the main threads of processes, without those that do not answer in time.

    Args:
        pids: The processes.
        threads: The kernel's numbers of other threads to ask as well, those that matter most first.
        timeout_s: How long to wait for all of them together.
    """
    deadline = time.monotonic() + timeout_s
    questions = []
    signals = SignalsByOwner()
    for pid in dict.fromkeys(pids):
        with contextlib.suppress(OSError):  # it has ended, or can't be looked at
            others = [each for each in (threads or {}).get(pid, ()) if 0 < each <= _LARGEST_THREAD]
            questions.append(_Question(pid, list(dict.fromkeys([pid, *others]))[:_MOST_THREADS], signals))
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
        signals.close()


def _goes_on(question: _Question) -> bool:
    try:
        return question.go_on()
    except OSError:  # this process can't be asked, but others can
        return False


def _text_of(question: _Question) -> str:
    try:
        return question.text()
    except OSError:
        return ""


def _memory_of_answer(pid: int) -> MemoryFile | None:
    """Return the file that a process writes its answers to; None if it is not ready to answer."""
    own = f"{MEMORY_NAME}:{pid}"
    files = list(memory_files(pid, MEMORY_NAME))
    given = [found.name.removeprefix(f"{own}:") for found in files if found.name.startswith(f"{own}:")]
    if given:
        return next((found for found in files if str(found.identity[1]) == given[-1]), None)
    return next((found for found in files if found.name == own), None)


class _Question:
    """The threads of one process, asked one after the other, because an answer does not name its thread.

    Raises:
        OSError: The process has ended, or is not ready to answer.
    """

    def __init__(self, pid: int, threads: Iterable[int], signals: SignalsByOwner) -> None:
        self.pid = pid
        self._threads = list(threads)
        self._answers: dict[int, str] = {}
        self._is_locked = False
        self._start = -1  # of the answer that is awaited
        # First of all: while this process lives, nobody else has its number.
        self._process = os.pidfd_open(pid)
        self._signals = signals
        try:
            self._file, self._is_writable = self._open_memory()
        except OSError:
            os.close(self._process)
            raise

    def _open_memory(self) -> tuple[int, bool]:
        found = _memory_of_answer(self.pid)
        if found is None or state_of(self.pid) in ("T", "t", "Z", "") or not catches(self.pid, STACK_SIGNAL):
            raise ProcessLookupError
        is_ours = found.is_ours
        file = open_memory_file(found, is_writable=is_ours)
        if file is None:
            raise ProcessLookupError
        return file, is_ours

    def go_on(self) -> bool:
        """Do what can be done without waiting; return whether something is left to do."""
        if not self._is_locked and not self._lock():
            return True
        while self._threads:
            if self._start < 0 and not self._ask():
                continue
            answer = self._read()
            if answer is None and not self._is_silent():
                return not self._has_ended()
            self._answers[self._threads.pop(0)] = answer or ""
            self._start = -1
        self._unlock()
        return False

    def text(self) -> str:
        """Return all answers, each under the number of its thread, including one that is not complete."""
        if self._threads and self._start >= 0:
            self._answers[self._threads[0]] = self._read_all(self._start).partition(_ANSWER)[2]
        return "".join(
            f"{'Current thread' if thread == self.pid else 'Thread'} {thread:#x} (most recent call first):\n{answer}\n"
            for thread, answer in self._answers.items()
            if answer
        )

    def close(self) -> None:
        """Release the lock, so that other processes can ask."""
        os.close(self._file)
        os.close(self._process)

    def _lock(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_locked = True
            self._take_fresh_answers()
            size = os.fstat(self._file).st_size
            if size > _KEPT_BYTES and self._is_writable:
                os.ftruncate(self._file, 0)
            elif size > _MOST_BYTES:
                self._threads.clear()  # the process's own user must look first, and empty it
        return self._is_locked

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take_fresh_answers(self) -> None:
        """Use answers that another process got a moment ago."""
        recent = max(0, os.fstat(self._file).st_size - _LONGEST_ANSWER)
        for record in self._read_all(recent).split("\n@")[1:] if self._threads else ():
            head, _, rest = record.partition("\n")
            note = _NOTE.fullmatch(head)
            if note is None or time.monotonic_ns() - int(note[2]) >= _FRESH_S * 1e9:
                continue
            if (thread := int(note[1])) in self._threads and rest.count(_ANSWER) > 1:
                self._answers[thread] = rest.split(_ANSWER)[1]
        self._threads = [thread for thread in self._threads if thread not in self._answers]

    def _ask(self) -> bool:
        thread = self._threads[0]
        if self._is_writable:
            os.write(self._file, f"\n@{thread} {time.monotonic_ns()}\n".encode())
        self._start = os.fstat(self._file).st_size
        # Check again: it may run another program now, or it has ended and its number belongs to another process.
        if self._may_signal(thread) and self._signal_twice(thread):
            return True
        self._threads.pop(0)  # the thread has ended, or would let the signals wait
        self._start = -1
        return False

    def _is_silent(self) -> bool:
        """Tell whether the thread has handled both signals and written nothing, because it has no Python code."""
        thread = self._threads[0]
        if has_waiting(self.pid, thread, STACK_SIGNAL) or blocks(self.pid, thread, STACK_SIGNAL):
            return False
        # The kernel takes a signal out a moment before it blocks it. So the second may be about to be handled, but the
        # first has been.
        return _ANSWER not in self._read_all(self._start)

    def _may_signal(self, thread: int) -> bool:
        is_deaf = thread != self.pid and blocks(self.pid, thread, STACK_SIGNAL)
        return catches(self.pid, STACK_SIGNAL) and not self._has_ended() and not is_deaf

    def _has_ended(self) -> bool:
        end = select.poll()
        end.register(self._process, select.POLLIN)
        return bool(end.poll(0))

    def _signal_twice(self, thread: int) -> bool:
        return self._signal(thread) and self._signal(thread)

    def _signal(self, thread: int) -> bool:
        if self._is_writable:
            return signal_thread(self.pid, thread, STACK_SIGNAL)
        owner = owner_of(self.pid)
        # Root owns what has ended, and also what another user has started with the rights of root.
        return bool(owner) and self._signals.send(owner or 0, self.pid, thread, STACK_SIGNAL)

    def _read(self) -> str | None:
        """Return the answer if it is complete, that is, if a second one has begun."""
        parts = self._read_all(self._start).split(_ANSWER)
        return parts[1] if len(parts) > 2 else None

    def _read_all(self, start: int) -> str:
        return os.pread(self._file, _LONGEST_ANSWER, start).decode(errors="replace")

"""Run the probes of several topics in processes, and give every probe a finding, whatever becomes of its process."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.doctor.finding import Answer, Finding, Topic, first_line
from phalanx.scarcity import advice_about

_AT_ONCE = 2  # importing torch takes as long as all the rest; with few open files allowed, more would not do
_PROGRAM = "import sys; from phalanx.doctor.asking import main; main(*sys.argv[1:])"
_START_S = 20.0  # for the interpreter, and for its end
_END_S = 1.0  # between the end of the answers and that of the process
_PART_BYTES = 65536
_LAST_WORDS_BYTES = 8192
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


def examine(topics: Sequence[Topic], watch: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Ask all probes and return their findings, in the order of the topics.

    Args:
        topics: What to ask.
        watch: Is called with the name of each probe when it begins.
    """
    processes = [_TopicProcess(topic, watch) for topic in topics]
    waiting, running = list(processes), list[_TopicProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start()
            running = [process for process in running if process.is_running]
            _wait(running)
    finally:
        for process in running:
            process.end()
    return [finding for process in processes for finding in process.findings]


def _wait(running: Sequence[_TopicProcess]) -> None:
    poll = select.poll()  # unlike select(), for descriptors of any number
    for process in running:
        poll.register(process.descriptor, select.POLLIN)
    patience_s = min((process.patience_s() for process in running), default=0)
    readable = {descriptor for descriptor, _ in poll.poll(patience_s * 1000 + 1)} if running else set()
    for process in running:
        if process.descriptor in readable:
            process.read()
        elif process.patience_s() == 0:
            process.give_up_waiting()


class _TopicProcess:
    """The process that asks the probes of a topic; another takes over if it hangs or dies. Not for several threads."""

    def __init__(self, topic: Topic, watch: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.is_running = False
        self._topic = topic
        self._watch = watch
        self._left = list(topic.probes)  # those without a finding; the process is at the first of them

    def start(self) -> None:
        """Start a process for the probes that have no finding yet."""
        self._has_begun = False
        self._unread = b""
        self._deadline = time.monotonic() + _START_S
        self._num_shown = 0
        try:
            with contextlib.ExitStack() as stack:
                # A file, for a pipe would have to be read all the time.
                self._stderr = stack.enter_context(open(os.memfd_create("phalanx-doctor"), "rb", buffering=0))
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, pickle.dumps(self._left).hex(), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    start_new_session=True,  # so that whatever it starts can be ended with it
                )
                stack.pop_all()
        except OSError as error:
            self._add_for_all(f"no process can be started for it ({first_line(error)})", advice_about(error))
            return
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self.is_running = True

    @property
    def descriptor(self) -> int:
        """What becomes readable when an answer comes."""
        return self._stdout.fileno()

    def patience_s(self) -> float:
        """Return how long the probe being asked may still take."""
        return max(0.0, self._deadline - time.monotonic())

    def read(self) -> None:
        """Take in the answers that have come."""
        part = os.read(self.descriptor, _PART_BYTES)
        if not part:
            how, last_words = self._how_it_ended(), self._take_last_words()
            self._go_on(f"{how}: {last_words}" if last_words else how)
            return
        *lines, self._unread = (self._unread + part).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def give_up_waiting(self) -> None:
        """End the process because its probe takes too long, and go on with the next probe in another."""
        patience_s = self._left[0].timeout_s if self._has_begun and self._left else _START_S
        self._go_on(f"no answer within {patience_s:g} s")

    def end(self) -> None:
        """End the process with all that it has started."""
        if not self.is_running:
            return
        self.is_running = False
        with contextlib.suppress(ProcessLookupError):  # it has not come so far as to have a group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        self._stderr.close()

    def _hear(self, answer: dict[str, Any] | None) -> None:
        if not self._left:  # the chain has been broken
            return
        if answer is None:
            self._has_begun = True
            self._deadline = time.monotonic() + self._left[0].timeout_s
            self._watch(f"{self._topic.title}: {self._left[0].subject}")
        else:
            self._deadline = time.monotonic() + _START_S
            self._add(Answer(**answer))

    def _add(self, answer: Answer) -> None:
        probe = self._left.pop(0)
        # The launcher's error refers to what its process wrote, which only the doctor has seen.
        text = answer.text.replace("; see its output above", f": {self._take_last_words()}")
        self.findings.append(
            Finding(self._topic.title, probe.subject, answer.status, text, answer.advice, answer.seconds, answer.count)
        )
        if self._topic.is_chain and answer.status == "problem":
            self._left.clear()

    def _add_for_all(self, why: str, advice: str = "") -> None:
        self.findings.append(Finding(self._topic.title, "all", "problem", f"can't be examined: {why}", advice))

    def _go_on(self, how: str) -> None:
        """End the process; blame the probe that it was at, and start another process for those behind it."""
        if self._left and not self._has_begun:  # another process would fare no better
            self._add_for_all(how)
            self._left.clear()
        elif self._left:
            self._add(self._left[0].lost(how))
        self.end()
        if self._left:
            self.start()

    def _take_last_words(self) -> str:
        """Return the last line that was written to standard error since this was called last, or ""."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(self._num_shown, size - _LAST_WORDS_BYTES)
        lines = os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace").strip().splitlines()
        self._num_shown = size
        return lines[-1].strip()[:200] if lines else ""

    def _how_it_ended(self) -> str:
        deadline = time.monotonic() + _END_S
        # It stays a zombie until end(): until then nobody else can have its number, which is also that of its group.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (found := os.waitid(os.P_PID, self._process.pid, look)) is None:
            if time.monotonic() > deadline:
                return "it closed its pipe"
            time.sleep(0.002)
        if found.si_code == os.CLD_EXITED:
            return f"its process ended with exit code {found.si_status}"
        how = f"killed by {_SIGNAL_NAMES.get(found.si_status, f'signal {found.si_status}')}"
        return f"{how}: a seccomp filter forbids the call" if found.si_status == signal.SIGSYS else how

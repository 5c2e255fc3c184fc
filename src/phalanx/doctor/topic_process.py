"""One topic being asked: whatever becomes of the process that asks, every probe gets a finding."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from phalanx.doctor.finding import Answer, Finding, Topic, first_line
from phalanx.doctor.probe_process import ProbeProcess
from phalanx.scarcity import advice_about

_START_S = 20.0  # for the interpreter, and for its end


class TopicProcess:
    """A topic being asked. Not for several threads.

    Args:
        topic: What to ask.
        watch: Told the subject of each probe as it begins.
    """

    def __init__(self, topic: Topic, watch: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self._topic = topic
        self._watch = watch
        self._next = 0  # the probe being asked, or to be asked next
        self._process: ProbeProcess | None = None
        self._has_begun = False
        self._deadline = 0.0

    @property
    def is_over(self) -> bool:
        """Whether all probes have their findings."""
        return self._process is None

    def start(self) -> None:
        """Start asking, from the first probe that has no finding yet."""
        self._has_begun = False
        self._deadline = time.monotonic() + _START_S
        try:
            self._process = ProbeProcess(self._topic.home, self._next)
        except OSError as error:
            self._give_up(f"no process can be started for it ({first_line(error)})", advice_about(error))

    def descriptors(self) -> list[int]:
        """Return what to wait for until something can be read."""
        return self._process.descriptors() if self._process is not None else []

    def patience_s(self) -> float:
        """Return how long the probe being asked may still take."""
        return max(0.0, self._deadline - time.monotonic())

    def read(self) -> None:
        """Take in what has come."""
        assert self._process is not None
        self._process.read_side()
        lines = self._process.read_answers()
        for line in lines or []:
            self._hear(json.loads(line))
        if lines is None:
            self._after_its_end(self._process)

    def check_patience(self) -> None:
        """End the process when its probe takes too long, and go on with the next probe in another."""
        if self._process is not None and self.patience_s() == 0:
            is_asked = self._has_begun and not self._is_complete()
            self._lose(f"no answer within {self._topic.probes[self._next].timeout_s if is_asked else _START_S:g} s")

    def end(self) -> None:
        """End the process with all that it started."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _hear(self, message: dict[str, Any]) -> None:
        if "begins" in message:
            self._has_begun = True
            probe = self._topic.probes[message["begins"]]
            self._deadline = time.monotonic() + probe.timeout_s
            self._watch(f"{self._topic.title}: {probe.subject}")
            return
        del message["answers"]
        self._deadline = time.monotonic() + _START_S
        self._add(Answer(**message))

    def _add(self, answer: Answer) -> None:
        last_words = self._process.take_last_words() if self._process is not None else ""
        # The launcher's error refers to what its process wrote, which only the doctor has seen.
        text = answer.text.replace("; see its output above", f": {last_words}")
        subject = self._topic.probes[self._next].subject
        self.findings.append(Finding(self._topic.title, subject, answer.status, text, answer.advice, answer.seconds))
        self._next += 1
        if self._topic.is_chain and answer.status == "problem":
            self._next = len(self._topic.probes)

    def _is_complete(self) -> bool:
        return self._next == len(self._topic.probes)

    def _after_its_end(self, process: ProbeProcess) -> None:
        if self._is_complete():
            self.end()
            return
        how, last_words = process.how_it_ended(), process.take_last_words()
        self._lose(f"{how}: {last_words}" if last_words else how)

    def _lose(self, how: str) -> None:
        self.end()
        if self._is_complete():
            return
        if not self._has_begun:  # the next process would fare no better
            self._give_up(how, "")
            return
        self._add(self._topic.probes[self._next].lost(how))
        if not self._is_complete():
            self.start()

    def _give_up(self, why: str, advice: str) -> None:
        self.findings.append(Finding(self._topic.title, "all", "problem", f"can't be looked at: {why}", advice))

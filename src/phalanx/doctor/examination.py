"""Ask several topics, two at a time, and never longer than their probes may take."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from phalanx.doctor.finding import Finding, Topic
from phalanx.doctor.topic_process import TopicProcess

_AT_ONCE = 2  # importing torch takes as long as all the rest; with few open files allowed, more would not do


def examine(topics: Sequence[Topic], watch: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Ask all probes and return their findings, in the order of the topics.

    Args:
        topics: What to ask.
        watch: Told what is being asked.
    """
    processes = [TopicProcess(topic, watch) for topic in topics]
    waiting, running = list(processes), list[TopicProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start()
            _wait(running)
            running = [process for process in running if not process.is_over]
    finally:
        for process in running:
            process.end()
    return [finding for process in processes for finding in process.findings]


def _wait(running: Sequence[TopicProcess]) -> None:
    poll = select.poll()
    process_of = {number: process for process in running for number in process.descriptors()}
    for number in process_of:
        poll.register(number, select.POLLIN)
    patience_s = min((process.patience_s() for process in process_of.values()), default=0)
    for process in {process_of[number] for number, _ in poll.poll(patience_s * 1000 + 1)}:
        process.read()
    for process in running:
        process.check_patience()

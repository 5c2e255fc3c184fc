"""Ask several topics, two at a time, and never longer than their probes may take."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from phalanx.doctor.finding import Finding, Topic
from phalanx.doctor.sitting import Sitting

_AT_ONCE = 2  # importing torch takes as long as all the rest; with few open files allowed, more would not do


def examine(topics: Sequence[Topic], watch: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Ask all probes and return their findings, in the order of the topics.

    Args:
        topics: What to ask.
        watch: Told what is being asked.
    """
    sittings = [Sitting(topic, watch) for topic in topics]
    waiting, running = list(sittings), list[Sitting]()
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start()
            _wait(running)
            running = [sitting for sitting in running if not sitting.is_over]
    finally:
        for sitting in running:
            sitting.end()
    return [finding for sitting in sittings for finding in sitting.findings]


def _wait(running: Sequence[Sitting]) -> None:
    poll = select.poll()
    sitting_of = {number: sitting for sitting in running for number in sitting.descriptors()}
    for number in sitting_of:
        poll.register(number, select.POLLIN)
    patience_s = min((sitting.patience_s() for sitting in sitting_of.values()), default=0)
    for sitting in {sitting_of[number] for number, _ in poll.poll(patience_s * 1000 + 1)}:
        sitting.read()
    for sitting in running:
        sitting.check_patience()

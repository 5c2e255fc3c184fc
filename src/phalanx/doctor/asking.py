"""The process in which the probes of one topic run: it may hang or die, and the doctor only reads what it says.

It writes a JSON line before each probe and one after it, so that the doctor knows which one is to blame.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
from dataclasses import asdict
from typing import TextIO

from phalanx.doctor.finding import Answer, Probe, Topic, first_line
from phalanx.scarcity import advice_about

_PR_SET_PDEATHSIG = 1


def main(home: str, first: int, descriptor: int, doctor: int) -> None:
    """Ask the probes of a topic from the `first` on.

    Args:
        home: The topic's module.
        first: Which probe to begin with: those before it have been asked, or were lost.
        descriptor: Where to write the answers.
        doctor: Process id of the doctor, with which this process dies.
    """
    die_with_parent(doctor)
    topic: Topic = importlib.import_module(home).TOPIC
    with os.fdopen(descriptor, "w") as stream:
        for index, probe in enumerate(topic.probes[first:], first):
            _tell(stream, {"begins": index})
            answer = _ask(probe)
            _tell(stream, {"answers": index, **asdict(answer)})
            if topic.is_chain and answer.status == "problem":
                break


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies.

    The launcher has the same, but it loads the engine, and that may be what is broken.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)


def _ask(probe: Probe) -> Answer:
    try:
        return probe.ask()
    except BaseException as error:  # a module that is imported may even raise SystemExit
        return probe.lost(first_line(error), advice_about(error))


def _tell(stream: TextIO, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()

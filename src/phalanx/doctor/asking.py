"""The process in which the probes of a topic run. It may hang or die, so the doctor only reads what it writes.

It writes a line before each probe and one after it, so that the doctor knows which probe is to blame.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import asdict

from phalanx.doctor.finding import Answer, Probe, first_line
from phalanx.scarcity import advice_about

_PR_SET_PDEATHSIG = 1


def main(pickled_probes: str, doctor: str) -> None:
    """Ask probes, and write the answers to standard output as JSON.

    Args:
        pickled_probes: The probes, in hexadecimal digits.
        doctor: Process id of the doctor, with which this process dies.
    """
    die_with_parent(int(doctor))
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a probe that prints must not write between the answers
    probes: Sequence[Probe] = pickle.loads(bytes.fromhex(pickled_probes))
    for probe in probes:
        os.write(answers, b"null\n")
        os.write(answers, json.dumps(asdict(_ask(probe))).encode() + b"\n")


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies.

    The launcher has a function for this as well, but it loads the engine, which may be what is broken.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)


def _ask(probe: Probe) -> Answer:
    try:
        return probe.ask()
    except BaseException as error:  # a module that is imported may even raise SystemExit
        return probe.lost(first_line(error), advice_about(error))

"""Probes that fail in every way a probe can, with good ones between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn

from phalanx.doctor.finding import Answer, Probe, Topic

HANG_S = 0.3


def _fine() -> Answer:
    return Answer("ok", "fine")


def _raise() -> NoReturn:
    raise LookupError("not there\nand more that nobody wants to read")


def _leave() -> NoReturn:
    sys.exit("left")


def _hang() -> NoReturn:
    with subprocess.Popen(["sleep", "600"]):
        while True:
            signal.pause()


def _crash() -> NoReturn:
    os.write(2, b"something\nfree(): invalid pointer\n")
    os.abort()


def _be_forbidden() -> NoReturn:
    os.kill(os.getpid(), signal.SIGSYS)
    raise AssertionError("unreachable")


def _end() -> NoReturn:
    os._exit(3)


TOPIC = Topic(
    "Bad",
    (
        Probe("first", _fine),
        Probe("raising", _raise, advice_when_lost="Bring it."),
        Probe("leaving", _leave, is_needed=False),
        Probe("hanging", _hang, HANG_S),
        Probe("crashing", _crash),
        Probe("forbidden", _be_forbidden, is_needed=False),
        Probe("ending", _end),
        Probe("last", _fine),
    ),
)

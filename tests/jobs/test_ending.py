"""Shutdown ranks step by step."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from phalanx.jobs.rank import Rank
from phalanx.jobs.shutdown import Shutdown, after_signal


@pytest.mark.slow
def test_a_signal_that_came_before_the_ranks_were_known_reaches_them() -> None:
    """The launcher may be asked to end while it has not yet read which processes its ranks are."""
    rank, ending = Rank(0), Shutdown(grace_s=60)
    ending.begin(after_signal(signal.SIGTERM), [rank])
    assert rank.sent == []
    with subprocess.Popen(["sleep", "60"]) as process:
        rank.pid, rank.pidfd = process.pid, os.pidfd_open(process.pid)
        ending.catch_up([rank])
        os.close(rank.pidfd)
        try:
            assert process.wait(20) == -signal.SIGTERM
        finally:
            process.kill()
    assert rank.sent == [signal.SIGTERM]

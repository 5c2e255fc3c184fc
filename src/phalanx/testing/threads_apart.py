"""Run ranks as threads of one forked process, for tests that change their process in a way that can't be undone."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

from phalanx.launch.connection import Connection
from phalanx.settings import read_settings
from phalanx.testing.ending import Ending
from phalanx.testing.forked_ranks import run_forked
from phalanx.testing.rank_report import RankReport
from phalanx.testing.taking_part import packed
from phalanx.testing.task_watch import Terminal

_TO_COME_HOME_S = 5.0


def run_apart(
    run: Callable[[], list[Ending]], item: Any, num_ranks: int, *, timeout_s: float, redirect: bool, terminal: Terminal
) -> list[Ending]:
    """Fork a process that runs the threads, and return how they ended.

    Args:
        run: The function that runs them.
        item: The test.
        num_ranks: How many ranks.
        timeout_s: How long they may take.
        redirect: Whether they print into files.
        terminal: The terminal that debugged ranks share.
    """

    def be_process(_: Connection) -> RankReport:
        num_properties = len(item.user_properties)
        endings = run()
        for ending in endings:
            if ending.report is not None:
                ending.report = pickle.loads(packed(ending.report))
        if endings[0].report is not None:
            endings[0].report.properties = item.user_properties[num_properties:]
        return RankReport("passed", result=pickle.dumps(endings))

    patience_s = 2 * read_settings().grace_s + _TO_COME_HOME_S  # the threads have their own time limit
    (whole,) = run_forked(be_process, 1, timeout_s=timeout_s + patience_s, redirect=redirect, terminal=terminal)
    if whole.report is None or whole.report.result is None or whole.status:
        # The end of the process was the end of all its threads.
        return [dataclasses.replace(whole, rank=rank) for rank in range(num_ranks)]
    endings: list[Ending] = pickle.loads(whole.report.result)
    if endings[0].report is not None:
        endings[0].report.coverage = whole.report.coverage
        endings[0].report.left_behind += whole.report.left_behind
    return endings

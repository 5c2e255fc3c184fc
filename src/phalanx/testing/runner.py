"""Runs tests on ranks of the kind they ask for, and keeps the warm ones between tests."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.testing.crew import Ending
from phalanx.testing.debugger import Debugger
from phalanx.testing.forked_ranks import new_meeting, run_forked
from phalanx.testing.line import Line
from phalanx.testing.plan import Defaults, Plan
from phalanx.testing.ports import claim_port
from phalanx.testing.rank_fixtures import DeferredFixture
from phalanx.testing.rank_report import RankReport
from phalanx.testing.rank_test import RankTest
from phalanx.testing.thread_ranks import run_threaded
from phalanx.testing.verdict import Verdict, judge
from phalanx.testing.warm_ranks import WarmRanks
from phalanx.testing.warm_task import adopt, make_task


class Runner:
    """What the plugin holds during a session."""

    def __init__(self, config: pytest.Config, defaults: Defaults) -> None:
        self.defaults = defaults
        self._redirect = config.getoption("capture", "fd") != "no"
        self._debugger = Debugger(config)
        self._warm: dict[int, WarmRanks] = {}
        self._items: dict[str, Any] = {}  # on warm ranks: all tests, by their ids

    def check(self, plan: Plan) -> None:
        """See whether a plan is possible here.

        Raises:
            UsageError: It is not.
        """
        if plan.device == "cuda":
            torch = importlib.import_module("torch")
            count = torch.cuda.device_count()
            if count < plan.num_ranks:
                raise UsageError(
                    f'{plan.num_ranks} ranks with device="cuda" need {plan.num_ranks} GPUs, one each; this machine has '
                    f'{count}. Use fewer ranks, or device="cpu" with backend="phalanx" or "gloo"'
                )

    def run(
        self, item: pytest.Function, plan: Plan, values: Mapping[str, Any], deferred: Sequence[DeferredFixture]
    ) -> Verdict:
        """Run a test and judge it.

        Raises:
            UsageError: It can't be run on such ranks.
        """
        _preload(item)
        kinds = {"process": self._run_fresh, "thread": self._run_threads, "pool": self._run_warm}
        return judge(kinds[plan.kind](item, plan, values, deferred), plan.timeout_s)

    def close(self) -> None:
        """End warm ranks."""
        while self._warm:
            self._warm.popitem()[1].close()

    def _run_fresh(self, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]) -> list[Ending]:
        def run(line: Line) -> RankReport:
            return RankTest(item, values, deferred, debug=self._debugger.on_rank(item, line)).run()

        return run_forked(
            run,
            plan.num_ranks,
            timeout_s=plan.timeout_s,
            redirect=self._redirect,
            interact=self._debugger.lend_terminal,
        )

    def _run_threads(self, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]) -> list[Ending]:
        def run() -> RankReport:
            return RankTest(item, values, deferred, is_thread=True).run()

        with claim_port() as port:
            return run_threaded(run, plan.num_ranks, timeout_s=plan.timeout_s, redirect=self._redirect, port=port)

    def _run_warm(self, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]) -> list[Ending]:
        def prepare(task: bytes, line: Line) -> tuple[Callable[[], RankReport], str, int]:
            sent = pickle.loads(task)
            if not self._items:
                self._items.update({each.nodeid: each for each in item.session.items})
            test = adopt(sent, self._items)
            test.debug = self._debugger.on_rank(test.item, line)
            return test.run, sent.meeting, sent.port

        warm = self._warm.get(plan.num_ranks)
        if warm is None:
            warm = self._warm[plan.num_ranks] = WarmRanks(
                plan.num_ranks, prepare, redirect=self._redirect, interact=self._debugger.lend_terminal
            )
        with claim_port() as port:
            task = pickle.dumps(make_task(item, values, deferred, new_meeting(), port))
            return warm.run(task, timeout_s=plan.timeout_s)


def _preload(item: pytest.Function) -> None:
    """Import here, once, what every rank would import."""
    importlib.import_module("phalanx.groups.connect")
    if "process_group" in item.fixturenames:
        importlib.import_module("phalanx.testing.rank_groups")
        importlib.import_module("phalanx.torch_backend.creation")

"""Run tests on the kind of ranks that they ask for, and keep the ranks of pools between tests."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.launch.connection import Connection
from phalanx.launch.rank_devices import RankGpus
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.zygote_client import NotForkableError, ZygoteClient
from phalanx.real_gpus.discovery import has_opened_cuda
from phalanx.testing.crew import Crew, TaskInterrupted
from phalanx.testing.crew_starts import fork_crew, start_crew
from phalanx.testing.debugger import Debugger
from phalanx.testing.ending import Ending
from phalanx.testing.examples import on_ranks, unpack
from phalanx.testing.forked_ranks import run_forked
from phalanx.testing.inherited import check_fixtures, has_initialised_cuda, wide_fixtures
from phalanx.testing.plan import Plan
from phalanx.testing.rank_fixtures import DeferredFixture
from phalanx.testing.rank_gpus import set_up_gpus
from phalanx.testing.rank_report import RankReport, caught_warnings
from phalanx.testing.rank_test import RankTest
from phalanx.testing.real_gpus import check_gpus
from phalanx.testing.session_plans import gpus_of
from phalanx.testing.shadow import serve_session, start_separate_ranks, start_shadow
from phalanx.testing.thread_output import ThreadOutput
from phalanx.testing.thread_ranks import run_threaded
from phalanx.testing.threads_apart import run_apart
from phalanx.testing.verdict import Verdict, judge
from phalanx.testing.virtual_gpus import preload_gpus
from phalanx.testing.warm_ranks import WarmRanks, serve
from phalanx.testing.warm_task import adopt, make_task


class Runner:
    """The runner of one pytest session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._redirect = config.getoption("capture", "fd") != "no"
        self._debugger = Debugger(config)
        self._warm: dict[tuple[int, RankGpus | None, str], WarmRanks] = {}
        self._shadow: ZygoteClient | None = None
        self._can_fork_shadow = True  # False once it is known that importing the tests initialises CUDA

    def check(self, plan: Plan) -> None:
        """Check that a plan is possible here.

        Raises:
            UsageError: It is not.
        """
        if plan.gpus is not None and plan.kind == "thread" and self.needs_shadow(plan):
            raise UsageError(
                'gpus="virtual" with kind="thread" needs a fork of pytest\'s own process, which can\'t be forked: it '
                'has initialised CUDA, or --ranks-shadow is given. Use kind="process" or kind="pool"'
            )
        if plan.is_on_real_gpus and gpus_of(self._config).count:
            check_gpus(gpus_of(self._config), plan.num_ranks, plan.backend)

    def reason_to_skip(self, plan: Plan) -> str:
        """Say what a test needs and this machine does not have; empty if it has everything."""
        if not plan.is_on_real_gpus or gpus_of(self._config).count:
            return ""
        return f'{gpus_of(self._config).absence}, and device="cuda" needs one; gpus="virtual" needs none'

    def run(
        self, item: pytest.Function, plan: Plan, values: Mapping[str, Any], deferred: Sequence[DeferredFixture]
    ) -> Verdict:
        """Run a test and judge it.

        Raises:
            UsageError: It can't be run on such ranks.
        """
        self._preload(item, plan)
        kinds = {"process": self._run_fresh, "thread": self._run_threads, "pool": self._run_warm}
        try:
            return judge(kinds[plan.kind](item, plan, values, deferred), plan.timeout_s)
        except TaskInterrupted as interrupted:
            verdict = judge(interrupted.endings, interrupted.seconds)
            verdict.interruption = interrupted.reason
            return verdict

    def close(self) -> None:
        """End warm ranks."""
        while self._warm:
            self._warm.popitem()[1].close()
        if self._shadow is not None:
            self._shadow.close()
            self._shadow = None

    def _run_fresh(self, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]) -> list[Ending]:
        def run(connection: Connection) -> RankReport:
            return RankTest(item, values, deferred, debug=self._debugger.on_rank(item, connection)).run()

        check_fixtures(values, is_forked=True)
        if self.needs_shadow(plan):
            fresh = WarmRanks(plan.num_ranks, lambda: self._start_in_shadow(plan.num_ranks))
            try:
                return self._send(fresh, item, plan, values, deferred)
            finally:
                fresh.close()
        return run_forked(
            run,
            plan.num_ranks,
            timeout_s=plan.timeout_s,
            redirect=self._redirect,
            terminal=self._debugger,
        )

    def _run_threads(
        self,
        item: Any,
        plan: Plan,
        values: Any,
        deferred: Sequence[DeferredFixture],
        **of_example: Any,
    ) -> list[Ending]:
        def run(output: ThreadOutput) -> RankReport:
            return RankTest(item, values, deferred, is_thread=True, capture=output.capture, **of_example).run()

        def run_all() -> list[Ending]:
            if plan.gpus is not None:
                set_up_gpus(plan.gpus)
            # Threads share the recorded warnings, so a warning of several ranks is recorded several times.
            with open_rendezvous() as rendezvous, warnings.catch_warnings(record=True) as caught:
                endings = run_threaded(
                    run, plan.num_ranks, timeout_s=plan.timeout_s, redirect=self._redirect, rendezvous=rendezvous
                )
            for ending in endings[:1]:
                if ending.report is not None:
                    ending.report.warnings = caught_warnings(caught)
            return endings

        if plan.gpus is None:
            return run_all()
        return run_apart(
            run_all,
            item,
            plan.num_ranks,
            timeout_s=plan.timeout_s,
            redirect=self._redirect,
            terminal=self._debugger,
        )

    @contextmanager
    def examples(
        self,
        item: Any,
        plan: Plan,
        values: Mapping[str, Any],
        deferred: Sequence[DeferredFixture],
        keep: Callable[[Verdict], None],
    ) -> Iterator[None]:
        """Inside the block, run every example that Hypothesis chooses for a test on the same ranks."""
        self._preload(item, plan)
        check_fixtures(values, is_forked=True)

        def prepare(task: bytes, _: Connection) -> Callable[[], RankReport]:
            return RankTest(item, values, deferred, inner=inner, example=unpack(task)).run

        def start() -> Crew:
            if self.needs_shadow(plan):
                return self._start_in_shadow(plan.num_ranks)
            return fork_crew(
                lambda _, connection: serve(connection, prepare),
                plan.num_ranks,
                redirect=self._redirect,
                terminal=self._debugger,
            )

        def run(example: bytes) -> Verdict:
            is_sent = self.needs_shadow(plan)
            task = pickle.dumps(make_task(item, values, deferred, example)) if is_sent else example
            return judge(ranks.run(task, timeout_s=plan.timeout_s), plan.timeout_s)

        def run_threads(example: bytes) -> Verdict:
            endings = self._run_threads(item, plan, values, deferred, inner=inner, example=unpack(example))
            return judge(endings, plan.timeout_s)

        ranks = WarmRanks(plan.num_ranks, start, keep_failed=True)
        try:
            with on_ranks(item, run_threads if plan.kind == "thread" else run, keep) as inner:
                yield
        finally:
            ranks.close()

    def _run_warm(self, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]) -> list[Ending]:
        def start() -> Crew:
            if self.needs_shadow(plan):
                return self._start_in_shadow(plan.num_ranks)
            items = {each.nodeid: each for each in item.session.items}
            return fork_crew(
                lambda _, connection: serve(connection, functools.partial(self._prepare, items)),
                plan.num_ranks,
                redirect=self._redirect,
                terminal=self._debugger,
            )

        check_fixtures(values, is_forked=False)
        like = (plan.num_ranks, plan.gpus, plan.device)
        warm = self._warm.get(like)
        if warm is None:
            warm = self._warm[like] = WarmRanks(plan.num_ranks, start)
        warm.require(wide_fixtures(item))
        return self._send(warm, item, plan, values, deferred)

    def _send(
        self, ranks: WarmRanks, item: Any, plan: Plan, values: Any, deferred: Sequence[DeferredFixture]
    ) -> list[Ending]:
        return ranks.run(pickle.dumps(make_task(item, values, deferred)), timeout_s=plan.timeout_s)

    def _prepare(self, items: Mapping[str, Any], task: bytes, connection: Connection) -> Callable[[], RankReport]:
        """On a warm rank: make a test from the task that it received."""
        test = adopt(pickle.loads(task), items)
        test.debug = self._debugger.on_rank(test.item, connection)
        return test.run

    def needs_shadow(self, plan: Plan) -> bool:
        """Tell whether ranks must be forked from the shadow, and not from this process."""
        if has_initialised_cuda() or self._config.getoption("--ranks-shadow"):
            return True
        return plan.is_on_real_gpus and has_opened_cuda()

    def _start_in_shadow(self, num_ranks: int) -> Crew:
        if self._can_fork_shadow:
            if self._shadow is None or not self._shadow.is_usable():
                self._shadow = start_shadow(self._config)
            try:
                return start_crew(
                    num_ranks, serve_session, self._shadow, redirect=self._redirect, terminal=self._debugger
                )
            except NotForkableError:
                self._can_fork_shadow = False
        return start_separate_ranks(self._config, num_ranks, redirect=self._redirect, terminal=self._debugger)

    def _preload(self, item: pytest.Function, plan: Plan) -> None:
        """Import here, once, what every rank would import."""
        # They import torch, which takes a second: only a session that runs tests on ranks needs it.
        from phalanx.testing import rank_groups  # noqa: F401

        if "process_group" in item.fixturenames:
            from phalanx.torch_backend import creation  # noqa: F401  # as above
        if plan.gpus is not None:
            preload_gpus(self._config)

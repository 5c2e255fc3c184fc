"""Run a call on ranks that are threads, each with its own world of torch.distributed, and check how they ended."""

from __future__ import annotations

import functools
import time
import unittest
from collections.abc import Callable
from typing import Any

from phalanx.engine import RankEndpoint
from phalanx.groups.open_groups import open_groups
from phalanx.launch.context import current_context
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.testing.rank_report import RankReport
from phalanx.testing.thread_ranks import run_threaded
from phalanx.testing.unittest import return_codes
from phalanx.testing.unittest.own_stacks import report_test_failure
from phalanx.testing.unittest.skip_codes import meaning_of
from phalanx.testing.unittest.timeouts import TIMEOUT_DEFAULT
from phalanx.testing.unittest.world_sizes import DEFAULT_WORLD_SIZE
from phalanx.torch_backend.thread_worlds import THREADED, thread_worlds, use_own_autograd_thread
from phalanx.torch_backend.untyped import dist

__unittest = True  # unittest leaves such frames out of tracebacks


def run_on_threads(call: Callable[[int], Any], num_ranks: int, *, timeout_s: float, test_id: str) -> None:
    """Call a function on every rank.

    Args:
        call: The function; it gets the rank.
        num_ranks: How many there are.
        timeout_s: How long it may take.
        test_id: The test, for the log.

    Raises:
        RuntimeError: A rank raised or was late.
        SkipTest: The ranks have skipped.
    """
    start = time.monotonic()
    broken: list[RankEndpoint] = []
    with thread_worlds(), open_rendezvous() as rendezvous:
        endings = run_threaded(
            lambda *_: _be_rank(call, broken), num_ranks, timeout_s=timeout_s, redirect=False, rendezvous=rendezvous
        )
    for group in broken:
        group.close()
    exits = [f"Thread {rank} exited with" for rank in range(num_ranks)]
    return_codes.check_errors(endings, exits, time.monotonic() - start, timeout_s)
    return_codes.check_skips(endings, test_id, [None] * num_ranks)


def _be_rank(call: Callable[[int], Any], broken: list[RankEndpoint]) -> RankReport:
    context = current_context()
    assert context is not None
    autograd = use_own_autograd_thread()
    try:
        call(context.rank)
    except unittest.SkipTest as skip:
        return RankReport("skipped", headline=str(skip))
    except SystemExit as leaving:
        meaning = meaning_of(leaving.code)
        if meaning is not None:
            return RankReport("skipped", headline=meaning)
        if leaving.code not in (None, 0):
            return _fail(leaving, broken)
    except BaseException as error:
        return _fail(error, broken)
    finally:
        autograd.__exit__(None, None, None)
    return RankReport("passed")


def _fail(error: BaseException, broken: list[RankEndpoint]) -> RankReport:
    report = report_test_failure(error)
    for group in open_groups():
        group.fail(report.headline)  # frees the other ranks at once
        broken.append(group)  # not closed yet: peers would take that for a regular end
    return report


def spawn_threads_and_init_comms(
    func: Callable[..., Any] | None = None,
    timeout: float = TIMEOUT_DEFAULT,
    world_size: int = DEFAULT_WORLD_SIZE,
) -> Callable[..., Any]:
    """Run a single test method on threads with a process group; with or without arguments."""
    if func is None:
        return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)

    @functools.wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        store = dist.HashStore()

        def run(rank: int) -> None:
            dist.init_process_group(THREADED, rank=rank, world_size=world_size, store=store)
            func(self, *args, **kwargs)
            if dist.is_initialized():
                dist.destroy_process_group()

        run_on_threads(run, world_size, timeout_s=timeout, test_id=self.id() if hasattr(self, "id") else "")

    return wrapper

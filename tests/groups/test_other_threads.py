"""What threads run that have not called an operation decides whether ranks may be ended that wait for each other."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import phalanx
from phalanx.engine.facts import RankFacts
from phalanx.groups.other_threads import what_other_threads_run
from tests.diagnosis.observations import row


@contextlib.contextmanager
def _running(function: object, *args: object) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
    thread.start()
    yield thread


def _get(items: queue.Queue[None]) -> None:
    items.get()


def print_what_runs() -> None:
    """The process has no threads of pytest's."""
    own = row(0)._replace(caller=threading.get_native_id())
    print(_seen_by_watch([own]))
    items: queue.Queue[None] = queue.Queue()
    with _running(items.get):
        print(_seen_by_watch([own]))
    items.put(None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        print(_seen_by_watch([own]))
    with _running(_get, items) as thread:
        print(_seen_by_watch([own]))
        print(_seen_by_watch([own, own._replace(caller=thread.native_id or 0)]))
        print(_seen_by_watch([own._replace(backward_caller=thread.native_id or 0)]))
        print(_seen_by_watch([own._replace(thread=thread.native_id or 0)]))
        print(_seen_by_watch([own._replace(thread=thread.native_id or 0, is_thread=True)]))
        print(_seen_by_watch([row(0)]))
        items.put(None)
        thread.join(20)
    # The thread that waits for ranks is none of them, but does not go on before they end.
    print(*phalanx.spawn(_seen_by_rank, ranks=1, kind="thread"))


def _seen_by_rank() -> str:
    phalanx.connect()
    return _seen_by_watch([row(0)._replace(caller=threading.get_native_id())])


def _seen_by_watch(rows: list[RankFacts]) -> str:
    """Ask in a thread of its own, as the watch does: threading does not know that one."""
    with ThreadPoolExecutor(1, thread_name_prefix="phalanx") as watch:
        return watch.submit(what_other_threads_run, rows).result()


def test_only_threads_that_run_no_program_and_call_nothing_are_overlooked() -> None:
    program = "from tests.groups import test_other_threads; test_other_threads.print_what_runs()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [
        "none",
        "libraries",  # waits in a queue
        "libraries",  # waits for work
        "program",
        "none",  # it is a caller, as the main thread is
        "none",
        "program",  # it has made a group, and has called nothing yet
        "none",  # it is another rank
        "program",  # the main thread has called nothing
        "none",
    ]

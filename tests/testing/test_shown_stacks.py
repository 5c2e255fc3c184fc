"""How a report shows stacks that faulthandler wrote."""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.queues
import threading
from pathlib import Path

import phalanx
from phalanx.testing.shown_stacks import show

_OWN = Path(phalanx.__file__).parent
_PYTHON = threading.__file__
_START = [(str(_OWN / "testing/rank_test.py"), "run"), ("/home/me/run_pytest.py", "main")]
_TORCH = "/usr/lib/python3/dist-packages/torch/nn.py"


def _stack(head: str, *calls: tuple[str, str]) -> str:
    lines = [f'  File "{file}", line 7 in {function}' for file, function in calls]
    return "\n".join([f"{head} 0x0000000000000001 (most recent call first):", *lines, ""])


def test_a_line_stands_for_the_calls_of_libraries_but_not_for_those_that_start_the_program() -> None:
    calls = [("/home/me/a.py", "hook"), (_TORCH, "call"), (_TORCH, "forward"), ("/home/me/a.py", "train")]
    seen = show(_stack("Current thread", (_PYTHON, "wait"), *calls, *_START))
    assert seen.place == "me/a.py:7"
    assert seen.short.splitlines() == [
        "at me/a.py:7 in hook:",
        '  File "/home/me/a.py", line 7, in train',
        "  ... 2 calls inside torch (PHALANX_FULL_TRACE=1 shows them)",
        '  File "/home/me/a.py", line 7, in hook',
        "  ... 1 call inside Python (PHALANX_FULL_TRACE=1 shows them)",
    ]
    functions = [line.rpartition(" ")[2] for line in seen.full.splitlines() if line.startswith("  File")]
    assert functions == ["train", "forward", "call", "hook", "wait"]


def test_threads_that_run_nothing_of_the_program_share_a_line() -> None:
    own = (str(_OWN / "groups/watch.py"), "look")
    text = (
        _stack("Thread", own) + _stack("Thread", (_PYTHON, "wait")) + _stack("Current thread", ("/home/me/a.py", "f"))
    )
    assert show(text).short.splitlines() == [
        "at me/a.py:7 in f:",
        '  File "/home/me/a.py", line 7, in f',
        "  ... 2 more threads inside phalanx and Python (PHALANX_FULL_TRACE=1 shows them)",
    ]
    assert "in look" in show(text).full


def test_threads_of_the_program_keep_their_names() -> None:
    text = _stack("Thread", ("/home/me/a.py", "g"), (_PYTHON, "run")) + _stack("Current thread", ("/home/me/a.py", "f"))
    shown = show(text).short
    assert "Thread 0x0000000000000001 (innermost call last):\n  File " in shown
    assert "Current thread 0x0000000000000001 (innermost call last):\n  File " in shown


def test_what_a_rank_answered_to_others_is_not_shown_as_well() -> None:
    answer = '\n@7 1\nStack (most recent call first):\n  File "/home/me/a.py", line 5 in f\n'
    last = _stack("Current thread", ("/home/me/a.py", "f"))
    for text in (answer + last + answer + answer, last):
        assert show(text).short.splitlines() == ["at me/a.py:7 in f:", '  File "/home/me/a.py", line 7, in f']
    assert show(answer + answer).short.count("line 5, in f") == 1


def test_a_stack_without_calls_of_the_program_is_shown_whole() -> None:
    assert "in wait" in show(_stack("Current thread", (_PYTHON, "wait"))).short


def test_the_reason_of_a_crash_stays() -> None:
    text = "Fatal Python error: Aborted\n\n" + _stack("Current thread", ("/home/me/a.py", "f"))
    assert "Fatal Python error: Aborted\n  File" in show(text).short


def test_a_rank_that_did_not_answer_has_no_stack() -> None:
    assert show("").short == show("").full == show("").place == ""


def test_a_worker_shows_its_own_calls_and_not_those_that_its_parent_had_made() -> None:
    start = (multiprocessing.process.__file__, "_bootstrap")
    worker = [("/home/me/a.py", "decode"), (_TORCH, "_worker_loop"), start, ("/home/me/a.py", "train")]
    get = (multiprocessing.queues.__file__, "get")
    idle = [get, (_TORCH, "_worker_loop"), start, ("/home/me/a.py", "train")]
    answers = [(5, _stack("Current thread", *worker)), (6, _stack("Current thread", *idle)), (7, "")]
    assert show("", answers).short.splitlines() == [
        "its child pid 5, at me/a.py:7 in decode:",
        '  File "/home/me/a.py", line 7, in decode',
    ]

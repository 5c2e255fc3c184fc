from __future__ import annotations

import time

import pytest

from tests.testing.inner_runs import InnerRuns

_HANGING = """
def compute_for_ever():
    while True: time.sleep(0.01)

@pytest.mark.ranks(3{timeout})
def test_hang(group, rank):
    group.barrier()
    if rank == 1: compute_for_ever()
    group.all_reduce(torch.ones(2))

@pytest.mark.ranks(3)
def test_after(group): group.barrier()
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_alone_with_the_stack_of_every_rank(inner: InnerRuns, kind: str) -> None:
    start = time.monotonic()
    result = inner.run(_HANGING.format(timeout=", timeout=0.5"), f"--ranks-kind={kind}")
    assert time.monotonic() - start < 40
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 3: not done after 500 ms, at *test_inner.py:*",
            "ranks 0, 2 of 3: not done after 500 ms, waiting in all_reduce #2, *test_inner.py:*",
            "*- rank 1 -*",
            "*line *, in compute_for_ever",
            "*while True: time.sleep(0.01)",
            "*- ranks 0, 2 -*",
            "ranks 0, 2, at *test_inner.py:* in test_hang:",
            "*group.all_reduce(torch.ones(2))",
        ]
    )
    result.stdout.fnmatch_lines(["FAILED*::test_hang - rank 1*: not done after 500 ms*"])


@pytest.mark.slow
def test_the_ini_file_and_the_command_line_set_the_timeout(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nranks_timeout = 3")  # the other test has to pass within it, on a busy machine too
    source = _HANGING.format(timeout="")
    for options, told in (((), "3 s"), (("--ranks-timeout=4",), "4 s")):
        result = inner.run(source, *options)
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines([f"rank 1 of 3: not done after {told}*"])


@pytest.mark.slow
def test_the_marks_timeout_beats_the_command_line(inner: InnerRuns) -> None:
    result = inner.run(_HANGING.format(timeout=", timeout=0.3"), "--ranks-timeout=30")
    result.stdout.fnmatch_lines(["rank 1 of 3: not done after 300 ms*"])


@pytest.mark.slow
def test_a_rank_that_hangs_in_native_code_is_ended_too(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import ctypes

        @pytest.mark.ranks(2, timeout=0.3, kind=["process", "pool"])
        def test_native(rank):
            libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
            if rank == 1: libc.sleep(50)

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_after(group): group.barrier()
        """
    )
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(["rank 1 of 2: not done after 300 ms, at *test_inner.py:*", "*libc.sleep(50)"])


@pytest.mark.slow
def test_a_rank_that_ignores_signals_is_ended_too(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, timeout=0.3)
        def test_deaf(rank):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            note(os.getpid())
            while True: time.sleep(0.01)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2: not done after 300 ms*"])
    for pid in inner.notes():
        with pytest.raises(FileNotFoundError):
            open(f"/proc/{pid}/stat").close()


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_all_named(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, timeout=0.4)
        def test_deadlock(group, rank):
            group.recv(torch.ones(1), 1 - rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank* of 2: not done after 400 ms, waiting in recv*"])


@pytest.mark.slow
def test_a_hanging_teardown_is_ended_too(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def sticky(rank):
            yield
            while rank == 1: time.sleep(0.01)

        @pytest.mark.ranks(2, timeout=0.3)
        def test_sticky(sticky): pass

        @pytest.mark.ranks(2)
        def test_after(group): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: not done after 300 ms, at *test_inner.py:*"])

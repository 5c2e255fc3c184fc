"""Failures that are hard to bring home: exceptions of every shape, exits, interrupts, floods of output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers
from tests.testing.inner_runs import InnerRuns, chosen


@pytest.mark.slow
def test_exceptions_of_every_shape_are_shown(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        class Unpicklable(Exception):
            def __init__(self, steps):
                super().__init__("holds a generator")
                self.steps = steps

        class Demanding(Exception):
            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")

        class Mute(Exception):
            def __str__(self): raise RuntimeError("no text")

        pytestmark = pytest.mark.ranks(2)

        def test_unpicklable(rank): raise Unpicklable(number for number in range(3))
        def test_demanding(rank): raise Demanding("this", "that")
        def test_mute(rank): raise Mute()
        def test_chain(rank):
            try: {}["key"]
            except KeyError as error: raise ValueError("outer") from error
        def test_group(rank): raise ExceptionGroup("several", [OSError("one"), KeyError("two")])
        def test_deep(rank): test_deep(rank)
        def test_fail(rank): pytest.fail("said so", pytrace=False)
        def test_local(rank):
            class Local(Exception): pass
            raise Local("made inside")
        def test_after(group): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=8, passed=1)
    texts = [
        "ranks 0-1 of 2: *Unpicklable: holds a generator*",
        "ranks 0-1 of 2: *Demanding: this and that*",
        "ranks 0-1 of 2: *Mute*",
        "ranks 0-1 of 2: ValueError: outer*",
        "E*KeyError: 'key'",
        "*direct cause of the following exception*",
        "E*ValueError: outer",
        "ranks 0-1 of 2: ExceptionGroup: several (2 sub-exceptions)*",
        "*OSError: one*",
        "ranks 0-1 of 2: RecursionError: maximum recursion depth exceeded*",
        "ranks 0-1 of 2: *said so*",
        "ranks 0-1 of 2: *Local: made inside*",
    ]
    result.stdout.fnmatch_lines(texts)


def test_a_failure_in_pytests_own_fixture_is_an_error_as_always(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def broken(): raise OSError("no disk")

        @pytest.fixture
        def messy():
            yield
            raise OSError("can't clean")

        @pytest.mark.ranks(2)
        def test_setup(broken, rank): note("ran")

        @pytest.mark.ranks(2)
        def test_teardown(messy, rank): pass
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at setup of test_setup*", "E*no disk", "*ERROR at teardown of*", "E*can't clean"]
    )
    assert not inner.notes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "pool"])
def test_a_flood_of_output_is_shown_from_its_end(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_flood(rank):
            for number in range(50_000): print("line", number)
            print("the last line")
            assert rank == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the last line"])
    result.stdout.no_fnmatch_line("line 17")


@pytest.mark.parametrize("kind", ["process", "pool"])
def test_output_that_is_no_text_does_no_harm(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_bytes(rank):
            os.write(1, bytes(range(128, 256)) + b"\\nend of bytes\\n")
            assert rank == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["end of bytes"])


@pytest.mark.slow
def test_pytest_exit_on_a_rank_ends_the_session(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_exit(rank): pytest.exit("enough", returncode=5)

        @pytest.mark.ranks(2)
        def test_after(rank): note("ran")
        """,
        f"--ranks-kind={kind}",
    )
    result.stdout.fnmatch_lines(["*enough*"])
    assert not inner.notes()


@pytest.mark.slow
def test_an_interrupt_ends_the_session_and_its_ranks(inner: InnerRuns) -> None:
    inner.write(
        """
        @pytest.mark.ranks(2, kind="pool")
        def test_warm(rank): note("rank", os.getpid())

        @pytest.mark.ranks(2)
        def test_long(group, rank):
            note("rank", os.getpid())
            group.barrier()
            if rank == 0: os.kill(os.getppid(), signal.SIGINT)
            while True: time.sleep(0.01)

        @pytest.mark.ranks(2)
        def test_after(rank): note("after")
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen(())],
        cwd=inner.pytester.path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "KeyboardInterrupt" in done.stdout
    pids = [line.split()[1] for line in inner.notes() if line.startswith("rank")]
    assert len(pids) == 4
    assert "after" not in inner.notes()
    assert leftovers.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.slow
def test_ranks_that_saw_off_their_branch_are_named_and_the_next_test_is_fine(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, timeout=5)
        def test_stop(group, rank):
            if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
            group.barrier()

        @pytest.mark.ranks(2, timeout=20, kind=["process", "pool"])
        def test_close_everything(group, rank):
            if rank == 1: os.closerange(3, 500)
            group.barrier()

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_close_streams(rank):
            os.close(1)
            os.close(2)
            assert rank == 0

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_deleted_folder(rank, rank_tmp_path):
            os.chdir(rank_tmp_path)
            rank_tmp_path.rmdir()
            assert rank == 0

        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_after(group): group.barrier()
        """
    )
    result.assert_outcomes(failed=7, passed=2)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2: not done after 5 s*",
            "rank 1 of 2: ended with exit code 1*",
            "rank 1 of 2: AssertionError: assert 1 == 0*",
            "rank 1 of 2: AssertionError: assert 1 == 0*",
        ]
    )

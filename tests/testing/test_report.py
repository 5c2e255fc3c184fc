"""What a failed test shows: who failed, how, and what the others were doing."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def _lines_of(result: pytest.RunResult, text: str) -> list[str]:
    return [line for line in result.outlines if text in line]


def test_assertions_are_rewritten_on_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_values(rank):
            values = [1, 2, 3]
            assert sum(values) - 3 == 4

        @pytest.mark.ranks(2)
        def test_dicts(rank):
            assert {"a": 1, "b": 2} == {"a": 1, "b": 3}
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "ranks 0-1 of 2: *assert (6 - 3) == 4*",
            ">*assert sum(values) - 3 == 4",
            "E*assert (6 - 3) == 4",
            "E*where 6 = sum([[]1, 2, 3])",
            "E*{'b': 2} != {'b': 3}",
        ]
    )


def test_the_simplest_assertion_shows_both_sides(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_count(rank, world_size):
            assert world_size - 1 == 4
            assert 3 == 4

        @pytest.mark.ranks(4)
        def test_literal(rank):
            assert 3 == 4
        """,
        f"--ranks-kind={kind}",
    )
    result.stdout.fnmatch_lines(["E*assert (4 - 1) == 4", "E*assert 3 == 4"])
    result.stdout.fnmatch_lines(["FAILED *::test_literal - ranks 0-3*: AssertionError: assert 3 == 4*"])


def test_each_distinct_failure_is_shown_once_with_its_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_two_ways(rank):
            if rank == 2:
                raise ValueError("bad shard")
            assert rank == 9
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    assert len(_lines_of(result, "ranks 0-1, 3 of 4: ")) == 1
    assert len(_lines_of(result, "rank 2 of 4: ValueError: bad shard")) == 1
    assert len(_lines_of(result, ">       assert rank == 9")) == 1
    assert len(_lines_of(result, '>           raise ValueError("bad shard")')) == 1
    for rank in (0, 1, 3):
        assert _lines_of(result, f"assert {rank} == 9")


def test_the_failing_rank_comes_first_and_the_others_say_what_they_wait_in(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_wait(group, rank):
            total = torch.ones(3)
            group.all_reduce(total)
            if rank == 3:
                assert total[0] == 5
            group.all_reduce(total)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 3 of 4: *assert tensor(4.) == 5 (test_inner.py:*)",
            "rank*: waiting in all_reduce #2, *test_inner.py:*",
            "*- rank 3 -*",
            ">*assert total[[]0] == 5",
        ],
        consecutive=False,
    )


def test_the_short_summary_says_who_failed_and_how(
    inner: InnerRuns, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_summary(group, rank):
            if rank == 1:
                raise RuntimeError("no luck")
            group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.stdout.fnmatch_lines(
        [
            "FAILED test_inner.py::test_summary - rank 1*: RuntimeError: no luck (test_inner.py:9); "
            "rank 0: waiting in barrier*",
        ]
    )


def test_the_output_of_each_rank_is_in_the_report(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import logging

        @pytest.mark.ranks(3)
        def test_output(rank):
            print("out of", rank)
            print("err of", min(rank, 1), file=sys.stderr)
            logging.getLogger("train").warning("log of %d", rank)
            assert rank == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.stdout.fnmatch_lines(
        [
            "*Captured stdout*rank 0*",
            "out of 0",
            "*Captured stdout*rank 1*",
            "out of 1",
            "*Captured stdout*rank 2*",
            "out of 2",
            "*Captured stderr*rank 0*",
            "err of 0",
            "*Captured stderr*ranks 1-2*",
            "err of 1",
            "*Captured log*rank 0*",
            "WARNING*log of 0",
            "*Captured log*rank 1*",
            "WARNING*log of 1",
            "*Captured log*rank 2*",
            "WARNING*log of 2",
        ]
    )
    for text in ("out of 0", "err of 1", "log of 0"):
        assert len(_lines_of(result, text)) == 1


@pytest.mark.slow
def test_output_of_native_code_and_of_child_processes_is_in_the_report(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_native(rank):
            os.write(1, f"raw {rank}\\n".encode())
            os.system(f"echo child {rank}")
            assert rank == 5
        """
    )
    result.stdout.fnmatch_lines(["*call of rank 0*", "raw 0", "child 0", "*call of rank 1*", "raw 1", "child 1"])


def test_output_of_a_passing_test_is_shown_only_when_asked_for(inner: InnerRuns, kind: str) -> None:
    source = """
    @pytest.mark.ranks(2)
    def test_quiet(rank): print("whisper", rank)
    """
    inner.run(source, f"--ranks-kind={kind}").stdout.no_fnmatch_line("*whisper*")
    result = inner.run(source, f"--ranks-kind={kind}", "-rP")
    result.stdout.fnmatch_lines(["*Captured stdout*rank 0*", "whisper 0", "*rank 1*", "whisper 1"])


@pytest.mark.slow
def test_without_capturing_ranks_print_to_the_terminal(inner: InnerRuns) -> None:
    result = inner.run_apart(
        """
        @pytest.mark.ranks(2, kind=["process", "thread", "pool"])
        def test_loud(rank, request): sys.stdout.write(f"loud {request.node.name} {rank}\\n")
        """,
        "-s",
    )
    result.assert_outcomes(passed=3)
    for kind in ("process", "thread", "pool"):
        for rank in (0, 1):
            assert _lines_of(result, f"loud test_loud[{kind}-2] {rank}")
    result.stdout.no_fnmatch_line("*Captured*")


@pytest.mark.parametrize("style", ["short", "line", "native", "no"])
def test_traceback_styles_are_respected(inner: InnerRuns, style: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_style(rank): assert rank == 5
        """,
        f"--tb={style}",
    )
    result.assert_outcomes(failed=1)
    # One line of each test's source is in short and native tracebacks, none in the others.
    assert bool(_lines_of(result, "def test_style(rank): assert rank == 5")) == (style in ("short", "native"))
    assert bool(_lines_of(result, "= FAILURES =")) == (style != "no")
    result.stdout.fnmatch_lines(["FAILED *::test_style - ranks 0-1*: *"])

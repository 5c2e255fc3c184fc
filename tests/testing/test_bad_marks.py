"""Marks that make no sense: the test fails before anything is started, with a message that says what to write."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_MARKS = {
    "ranks(0)": "@pytest.mark.ranks(0): the number of ranks must be a whole number from 1 to 1024; write @pytest*",
    "ranks(-3)": "@pytest.mark.ranks(-3): the number of ranks must be a whole number*",
    'ranks("four")': "@pytest.mark.ranks('four'): the number of ranks must be a whole number*",
    "ranks(2.0)": "@pytest.mark.ranks(2.0): the number of ranks must be a whole number*",
    "ranks(True)": "@pytest.mark.ranks(True): the number of ranks must be a whole number*",
    "ranks(None)": "@pytest.mark.ranks(None): the number of ranks must be a whole number*",
    "ranks(5000)": "@pytest.mark.ranks(5000): the number of ranks must be a whole number from 1 to 1024*",
    "ranks([2, 0])": "@pytest.mark.ranks(0): the number of ranks must be a whole number*",
    "ranks()": "@pytest.mark.ranks takes one number of ranks, got 0; write @pytest.mark.ranks(4)*",
    "ranks": "@pytest.mark.ranks takes one number of ranks, got 0; write @pytest.mark.ranks(4)*",
    "ranks(1, 2)": "@pytest.mark.ranks takes one number of ranks, got 2; write @pytest.mark.ranks(4) or @pytest*",
    "ranks([])": "@pytest.mark.ranks: the list of ranks [[]] is empty; write @pytest.mark.ranks(4)*",
    "ranks([2, 2])": "@pytest.mark.ranks: the list of ranks [[]2, 2] names something twice; write*",
    "ranks(2, color=1)": "@pytest.mark.ranks takes no color; write *; options are kind, timeout, *, gpus, races",
    'ranks(2, kind="x")': "@pytest.mark.ranks: kind is 'x'; give one of process, thread, pool",
    "ranks(2, kind=[])": "@pytest.mark.ranks: the list of kind [[]] is empty; write*",
    "ranks(2, timeout=-1)": "@pytest.mark.ranks: timeout is -1; give a positive number of seconds",
    "ranks(2, timeout=0)": "@pytest.mark.ranks: timeout is 0; give a positive number of seconds",
    'ranks(2, timeout="1s")': "@pytest.mark.ranks: timeout is '1s'; give a positive number of seconds",
    'ranks(2, timeout=float("nan"))': "@pytest.mark.ranks: timeout is nan; give a positive number of seconds",
    'ranks(2, backend="smoke")': "@pytest.mark.ranks: backend is 'smoke'; give one of phalanx, gloo, nccl, mpi",
    'ranks(2, device="tpu")': "@pytest.mark.ranks: device is 'tpu'; give one of cpu, cuda",
}


def test_a_mark_that_makes_no_sense_fails_its_test_with_a_message(inner: InnerRuns) -> None:
    tests = [f"@pytest.mark.{mark}\ndef test_{number}(rank): note('ran')\n" for number, mark in enumerate(_MARKS)]
    result = inner.run("".join(tests) + "\n@pytest.mark.ranks(2)\ndef test_good(rank): note('good')\n")
    result.assert_outcomes(errors=len(_MARKS), passed=1)
    result.stdout.fnmatch_lines([f"{told}" for told in _MARKS.values()])
    assert inner.notes() == ["good", "good"]
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_a_unittest_method_is_refused_with_the_right_way(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import unittest

        class Cases(unittest.TestCase):
            @pytest.mark.ranks(2)
            def test_method(self): note("ran")

            def test_plain(self): note("plain")
        """
    )
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        ["@pytest.mark.ranks is for test functions and plain classes; in a unittest.TestCase use *MultiProcessTestCase"]
    )
    assert inner.notes() == ["plain"]


@pytest.mark.parametrize("name", ["rank", "group", "process_group", "device", "rank_tmp_path", "world_size"])
def test_a_fixture_of_ranks_without_the_mark_is_refused(inner: InnerRuns, name: str) -> None:
    result = inner.run(f"def test_unmarked({name}): note('ran')")
    result.assert_outcomes(errors=1)
    told = f"fixture '{name}' of phalanx needs ranks; mark the test, for example with @pytest.mark.ranks(4)"
    result.stdout.fnmatch_lines(["* ERROR at setup of test_unmarked *", told])
    result.stdout.no_fnmatch_line("*fixtures.py*")
    assert not inner.notes()


def test_a_doctest_with_the_mark_on_its_module_is_refused_or_left_alone(inner: InnerRuns) -> None:
    result = inner.run(
        '''
        def add(a, b):
            """
            >>> add(1, 2)
            3
            """
            return a + b

        @pytest.mark.ranks(2)
        def test_ranks(rank): assert add(1, rank) == 1 + rank
        ''',
        "--doctest-modules",
    )
    result.assert_outcomes(passed=2)

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def test_a_test_runs_once_on_each_of_its_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_function(rank, world_size):
            note("function", rank, world_size)

        class TestClass:
            @pytest.mark.ranks(2)
            def test_method(self, rank, world_size):
                note("method", rank, world_size)

        def test_without_ranks():
            note("alone")
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=3)
    functions = [f"function {rank} 4" for rank in range(4)]
    assert inner.notes() == ["alone", *functions, "method 0 2", "method 1 2"]


@pytest.mark.slow
def test_a_list_of_numbers_makes_a_test_of_each(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks([1, 2, 4])
        def test_sizes(group):
            note(group.size, group.rank)
            group.barrier()

        @pytest.mark.ranks([1, 2])
        @pytest.mark.parametrize("letter", ["a", "b"])
        def test_letters(rank, letter):
            note(letter, rank)
        """,
        f"--ranks-kind={kind}",
        "-v",
    )
    result.assert_outcomes(passed=7)
    for name in ("sizes[ranks-1]", "sizes[ranks-2]", "sizes[ranks-4]", "letters[ranks-2-a]"):
        result.stdout.fnmatch_lines_random([f"*::test_{name.replace('[', '[[]')} PASSED*"])
    sizes = [f"{size} {rank}" for size in (1, 2, 4) for rank in range(size)]
    letters = [f"{letter} {rank}" for letter in "ab" for rank in (0, 0, 1)]
    assert inner.notes() == [*sizes, *letters]


def test_a_list_of_kinds_makes_a_test_of_each(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks([1, 2], kind=["process", "thread"])
        def test_kinds(rank):
            note(os.getpid() == PID, rank)

        PID = os.getpid()
        """,
        "-v",
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(
        [f"*::test_kinds[[]{kind}-{size}] PASSED*" for kind in ("process", "thread") for size in (1, 2)]
    )
    assert inner.notes() == ["False 0", "False 0", "False 1", "True 0", "True 0", "True 1"]


def test_a_class_or_a_module_can_be_marked_and_the_nearest_mark_counts(inner: InnerRuns) -> None:
    inner.run(
        """
        pytestmark = pytest.mark.ranks(3, kind="thread")

        def test_of_the_module(world_size, rank):
            note("module", world_size, rank)

        @pytest.mark.ranks(2, kind="thread")
        class TestMarked:
            def test_of_the_class(self, world_size, rank):
                note("class", world_size, rank)

            @pytest.mark.ranks(1)
            def test_of_its_own(self, world_size, rank):
                note("own", world_size, rank)
        """,
    ).assert_outcomes(passed=3)
    assert inner.notes() == ["class 2 0", "class 2 1", "module 3 0", "module 3 1", "module 3 2", "own 1 0"]


def test_a_parameter_can_be_marked(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.ranks(2))])
        def test_marked(x): note(x, os.environ.get("WORLD_SIZE"))
        """
    )
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["1 None", "2 2", "2 2"]


def test_a_mark_with_several_numbers_on_a_parameter_is_refused(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.parametrize("x", [pytest.param(2, marks=pytest.mark.ranks([1, 2]))])
        def test_marked(x): note("ran")
        """
    )
    result.assert_outcomes(errors=1)
    assert not inner.notes()

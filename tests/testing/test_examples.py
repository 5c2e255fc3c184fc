"""Hypothesis on ranks: one engine, every example on all ranks."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

_NEEDS = ("hypothesispytest",)
_IMPORTS = "from hypothesis import assume, given, settings, strategies as st\n"


@pytest.mark.slow
def test_every_rank_sees_the_same_examples(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(number=st.integers(0, 1000), text=st.text(max_size=3))
@settings(max_examples=20, deadline=None, database=None)
def test_same(group, rank, number, text):
    gathered = group.all_gather_object((number, text))
    assert gathered == [(number, text)] * 2
    note(rank, number, repr(text))
""",
        f"--ranks-kind={kind}",
        needs=_NEEDS,
    )
    result.assert_outcomes(passed=1)
    seen = [[line[2:] for line in inner.notes() if line.startswith(str(rank))] for rank in (0, 1)]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_failing_example_is_shrunk_on_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(number=st.integers(0, 1000), values=st.lists(st.integers()))
@settings(deadline=None, database=None)
def test_shrink(group, rank, number, values):
    group.barrier()
    if rank == 1: assert number < 20
    group.barrier()
""",
        f"--ranks-kind={kind}",
        needs=_NEEDS,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: AssertionError: assert 20 < 20*"])
    result.stdout.fnmatch_lines(["*: test_shrink(", "*number=20,*", "*values=[[]],*"])


@pytest.mark.slow
def test_an_example_that_kills_a_rank_is_shrunk_too(inner: InnerRuns) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(number=st.integers(0, 100))
@settings(deadline=None, database=None, max_examples=30)
def test_kill(group, rank, number):
    if rank == 1 and number >= 10: os._exit(4)
    group.barrier()
""",
        needs=_NEEDS,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: ended with exit code 4*"])
    result.stdout.fnmatch_lines(["*number=10,*"])


@pytest.mark.slow
def test_assume_on_ranks_rejects_an_example(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(number=st.integers(0, 9))
@settings(deadline=None, database=None, max_examples=15)
def test_assume(group, rank, number):
    assume(number % 2 == 0)
    group.barrier()
    note(number % 2)
""",
        f"--ranks-kind={kind}",
        needs=_NEEDS,
    )
    result.assert_outcomes(passed=1)
    assert set(inner.notes()) == {"0"}


def test_an_assumption_of_only_some_ranks_fails(inner: InnerRuns) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(number=st.integers(0, 9))
@settings(deadline=None, database=None, max_examples=5)
def test_divided(rank, number):
    assume(rank == 0)
""",
        needs=_NEEDS,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1*: rejected *while rank 0 ran the test; decide the same on every rank"])


def test_drawing_inside_the_test_is_refused(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.mark.ranks(2)
@given(data=st.data())
def test_data(rank, data): data.draw(st.integers())
""",
        f"--ranks-kind={kind}",
        needs=_NEEDS,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*argument 'data' *st.data()*could not be the same on every rank*"])


@pytest.mark.slow
def test_given_works_on_methods_with_fixtures_and_several_sizes(inner: InnerRuns) -> None:
    result = inner.run(
        _IMPORTS
        + """
@pytest.fixture
def own(rank):
    yield 10 + rank

class TestMethods:
    @pytest.mark.ranks([1, 2])
    @given(number=st.integers(0, 5))
    @settings(deadline=None, database=None, max_examples=5)
    def test_method(self, own, world_size, rank, number):
        assert own == 10 + rank
        note(type(self).__name__, world_size, rank)
""",
        needs=_NEEDS,
    )
    result.assert_outcomes(passed=2)
    assert set(inner.notes()) == {"TestMethods 1 0", "TestMethods 2 0", "TestMethods 2 1"}

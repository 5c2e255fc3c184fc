"""Fixtures of a wider scope: made once, in pytest's own process, and present on every rank."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_SCOPES = """
@pytest.fixture(scope="session")
def for_session():
    note("session made")
    yield ["session"]
    note("session torn down")

@pytest.fixture(scope="module")
def for_module(for_session):
    note("module made")
    yield for_session + ["module"]
    note("module torn down")

@pytest.fixture(scope="class")
def for_class(for_module):
    note("class made")
    return for_module + ["class"]

class TestShared:
    @pytest.mark.ranks(2)
    def test_first(self, for_class, rank):
        assert for_class == ["session", "module", "class"]
        note("ran")

    @pytest.mark.ranks(3)
    def test_second(self, for_class, for_session, rank):
        assert for_class == ["session", "module", "class"]
        assert for_session == ["session"]
        note("ran")

def test_third_without_ranks(for_module): note("ran")
"""


def test_module_and_session_fixtures_are_made_once(inner: InnerRuns, kind: str) -> None:
    inner.run(_SCOPES, f"--ranks-kind={kind}").assert_outcomes(passed=3)
    expected = ["class made", "module made", "module torn down", *["ran"] * 6, "session made", "session torn down"]
    assert inner.notes() == expected


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_unpicklable_fixtures_are_inherited(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture(scope="module")
        def unpicklable():
            steps = (number for number in range(100))
            next(steps)
            return {"steps": steps, "lock": threading.Lock(), "function": lambda: 5}

        @pytest.mark.ranks(2)
        def test_use(unpicklable, rank):
            with unpicklable["lock"]:
                note(next(unpicklable["steps"]) > 0)
            assert unpicklable["function"]() == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["True", "True"]


def test_what_a_rank_changes_in_a_shared_fixture_stays_on_that_rank(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture(scope="module")
        def shared(): return []

        @pytest.mark.ranks(2)
        def test_change(shared, rank):
            shared.append(rank)
            assert shared == [rank]

        @pytest.mark.ranks(2)
        def test_unchanged(shared, rank): assert shared == []
        """
    )
    result.assert_outcomes(passed=2)


def test_a_module_fixture_that_asks_for_rank_is_refused_by_pytest(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture(scope="module")
        def wide(rank): return rank

        @pytest.mark.ranks(2)
        def test_wide(wide): pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ScopeMismatch: You tried to access the function scoped fixture rank with a module*"])


def test_a_tensor_of_a_session_fixture_is_the_same_on_every_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        from phalanx.testing import assert_same_on_ranks

        @pytest.fixture(scope="session")
        def weights(): return torch.randn(100, generator=torch.Generator().manual_seed(3))

        @pytest.mark.ranks(2)
        def test_weights(weights, group, rank):
            assert_same_on_ranks(weights)
            mine = weights.clone()
            group.all_reduce(mine)
            assert torch.equal(mine, 2 * weights)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)

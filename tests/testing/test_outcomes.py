"""skip, xfail and their like on ranks: what pytest makes of them without."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def test_a_test_that_every_rank_skips_is_skipped(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_skip(rank): pytest.skip("not today")

        @pytest.mark.ranks(2)
        @pytest.mark.skip(reason="never")
        def test_mark(rank): note("ran")

        @pytest.mark.ranks(2)
        @pytest.mark.skipif(sys.version_info > (3, 0), reason="too new")
        def test_if(rank): note("ran")

        @pytest.mark.ranks(2)
        @pytest.mark.skipif(sys.version_info < (3, 0), reason="too old")
        def test_not_if(rank): note("not skipped", rank)

        @pytest.mark.ranks(2)
        def test_import(rank): pytest.importorskip("no_such_module")

        @pytest.fixture
        def picky(rank): pytest.skip("fixture says no")

        @pytest.mark.ranks(2)
        def test_fixture(picky): note("ran")
        """,
        f"--ranks-kind={kind}",
        "-rs",
    )
    result.assert_outcomes(passed=1, skipped=5)
    assert inner.notes() == ["not skipped 0", "not skipped 1"]
    for reason in ("not today", "never", "too new", "could not import 'no_such_module'*", "fixture says no"):
        result.stdout.fnmatch_lines_random([f"SKIPPED*{reason}"])


def test_a_test_that_only_some_ranks_skip_fails_and_says_so(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_divided(rank):
            if rank == 2: pytest.skip("no GPU")
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    expected = "rank 2*: skipped (no GPU) while ranks 0-1, 3 ran the test; decide the same on every rank"
    result.stdout.fnmatch_lines([expected])


@pytest.mark.slow
def test_xfail_means_what_it_means_without_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        @pytest.mark.xfail(reason="known")
        def test_fails(rank): assert rank == 5

        @pytest.mark.ranks(2)
        @pytest.mark.xfail(reason="known")
        def test_fails_on_one(group, rank):
            assert rank == 0
            group.barrier()

        @pytest.mark.ranks(2)
        @pytest.mark.xfail(reason="known")
        def test_passes(rank): pass

        @pytest.mark.ranks(2)
        @pytest.mark.xfail(strict=True, reason="it must fail")
        def test_strict(rank): pass

        @pytest.mark.ranks(2)
        @pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
        def test_raises(rank): 1 / 0

        @pytest.mark.ranks(2)
        @pytest.mark.xfail(raises=ZeroDivisionError)
        def test_raises_another(rank): raise ValueError("another")

        @pytest.mark.ranks(2)
        def test_inside(rank): pytest.xfail("seen on the way")
        """,
        f"--ranks-kind={kind}",
        "-rA",
    )
    result.assert_outcomes(xfailed=4, xpassed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "XFAIL*::test_fails - known*",
            "XFAIL*::test_fails_on_one - known*",
            "XPASS*::test_passes - known",
            "FAILED*::test_strict - *it must fail",
            "XFAIL*::test_raises*",
            "FAILED*::test_raises_another - ranks 0-1*: ValueError: another*",
            "XFAIL*::test_inside - *seen on the way*",
        ]
    )


def test_pytest_raises_and_warns_work_on_a_rank(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_raises(rank):
            with pytest.raises(ValueError, match=f"of rank {rank}") as caught:
                raise ValueError(f"mistake of rank {rank}")
            assert caught.value.args == (f"mistake of rank {rank}",)

        @pytest.mark.ranks(2)
        def test_does_not_raise(rank):
            with pytest.raises(ValueError):
                pass

        @pytest.mark.ranks(2)
        def test_warns(rank):
            with pytest.warns(UserWarning, match="careful"):
                warnings.warn("careful")
        """
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2: Failed: DID NOT RAISE*ValueError*"])


def test_warnings_of_ranks_are_in_the_summary_once(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(3)
        def test_warn(rank):
            warnings.warn("old call", DeprecationWarning)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*test_inner.py:*: DeprecationWarning: old call"])


def test_filterwarnings_applies_on_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        @pytest.mark.filterwarnings("error:careful")
        def test_error(rank): warnings.warn("careful")

        @pytest.mark.ranks(2)
        @pytest.mark.filterwarnings("ignore:quiet")
        def test_ignore(rank): warnings.warn("quiet")
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1, passed=1, warnings=0)
    # A rank that is a thread may be told to stop before it has warned, if the other one was very quick.
    result.stdout.fnmatch_lines([f"rank{'*' if kind == 'thread' else 's 0-1'} of 2: UserWarning: careful*"])

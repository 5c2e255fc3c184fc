from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

pytest.importorskip("pytest_asyncio", reason="pytest-asyncio is not installed")

_OPTIONS = ("-o", "asyncio_default_fixture_loop_scope=function")


def test_an_async_test_runs_in_an_event_loop_of_each_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import asyncio

        @pytest.mark.ranks(2)
        @pytest.mark.asyncio
        async def test_async(group, rank):
            await asyncio.sleep(0)
            total = torch.ones(1)
            await asyncio.to_thread(lambda: None)
            group.all_reduce(total)
            assert total.item() == 2
            note("ran", rank, asyncio.get_running_loop().is_running())

        class TestClass:
            @pytest.mark.ranks(2)
            @pytest.mark.asyncio
            async def test_method(self, rank):
                await asyncio.sleep(0)
                note("method", rank)
        """,
        f"--ranks-kind={kind}",
        *_OPTIONS,
        needs=("asyncio",),
    )
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["method 0", "method 1", "ran 0 True", "ran 1 True"]


def test_an_async_test_that_fails_says_where_and_on_which_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import asyncio

        @pytest.mark.ranks(3)
        @pytest.mark.asyncio
        async def test_async(group, rank):
            await asyncio.sleep(0)
            assert rank != 1
            group.barrier()
        """,
        f"--ranks-kind={kind}",
        *_OPTIONS,
        needs=("asyncio",),
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank 1 of 3: AssertionError: assert 1 != 1 (test_inner.py:*)", ">*assert rank != 1", "E*assert 1 != 1"]
    )


def test_async_fixtures_of_ranks_run_in_the_loop_of_the_test(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import asyncio
        import pytest_asyncio

        @pytest_asyncio.fixture
        async def opened(rank):
            loop = asyncio.get_running_loop()
            await asyncio.sleep(0)
            yield (rank, loop)
            await asyncio.sleep(0)
            assert loop is asyncio.get_running_loop()
            note("closed", rank)

        @pytest_asyncio.fixture
        async def made(opened): return opened[0] * 10

        @pytest.mark.ranks(2)
        @pytest.mark.asyncio
        async def test_fixtures(opened, made, rank):
            assert opened == (rank, asyncio.get_running_loop())
            assert made == rank * 10
        """,
        f"--ranks-kind={kind}",
        *_OPTIONS,
        needs=("asyncio",),
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["closed 0", "closed 1"]

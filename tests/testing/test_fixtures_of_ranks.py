from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def test_a_test_gets_its_group_rank_size_device_and_folder(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """

        @pytest.mark.ranks(3)
        def test_all(group, rank, world_size, device, tmp_path, rank_tmp_path):
            assert (group.rank, group.size) == (rank, world_size)
            assert world_size == 3
            assert device == torch.device("cpu")
            total = torch.full((2,), float(rank), device=device)
            group.all_reduce(total)
            assert total.tolist() == [3, 3]
            assert rank_tmp_path.parent == tmp_path
            (rank_tmp_path / "mine").write_text(str(rank))
            group.barrier()
            assert sorted(path.parent.name for path in tmp_path.glob("*/mine")) == ["rank-0", "rank-1", "rank-2"]
            note("done", rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["done 0", "done 1", "done 2"]


def test_process_group_is_torchs_default_group(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_dist(process_group, rank):
            assert process_group is dist.group.WORLD
            assert dist.get_backend() == "phalanx"
            assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
            total = torch.ones(2)
            dist.all_reduce(total)
            assert total.tolist() == [2, 2]
            note("done", rank)

        @pytest.mark.ranks(2)
        def test_next_has_none_until_it_asks(rank):
            assert not dist.is_initialized()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["done 0", "done 1"]


def test_a_generator_fixture_that_takes_rank_is_torn_down_on_each_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def base():
            note("base made")
            yield 100
            note("base torn down")

        @pytest.fixture
        def own(base, rank):
            note("own made", rank)
            yield base + rank
            note("own torn down", rank)

        @pytest.fixture
        def twice(own):
            return 2 * own

        @pytest.fixture
        def of_world(world_size):
            note("known before")
            return world_size

        @pytest.mark.ranks(2)
        def test_values(twice, own, rank, of_world):
            assert (own, twice, of_world) == (100 + rank, 2 * (100 + rank), 2)

        @pytest.mark.ranks(2)
        def test_fails(own, rank):
            assert rank == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1, failed=1)
    once = ["base made", "base torn down"] * 2 + ["known before"]
    on_each = [f"own {what} {rank}" for what in ("made", "torn down") for rank in (0, 1)] * 2
    assert inner.notes() == sorted(once + on_each)


def test_a_fixture_on_ranks_has_request(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture(params=["x", "y"])
        def letter(request, rank):
            request.addfinalizer(lambda: note("finalizer", request.param, rank))
            assert request.node.name.startswith("test_")
            assert request.function.__name__ == "test_params"
            return f"{request.param}{rank}"

        @pytest.mark.ranks(2)
        def test_params(letter, rank):
            note("got", letter)

        @pytest.fixture
        def doubled(request, rank):
            return request.param * 2 + rank

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("doubled", [10, 20], indirect=True)
        def test_indirect(doubled, rank):
            note("doubled", doubled - rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=4)
    finalized = [f"finalizer {letter} {rank}" for letter in "xy" for rank in (0, 1)]
    got = [f"got {letter}{rank}" for letter in "xy" for rank in (0, 1)]
    assert inner.notes() == sorted([*finalized, *got, *(["doubled 20", "doubled 40"] * 2)])


@pytest.mark.slow
def test_a_failing_fixture_on_ranks_fails_the_test_and_names_the_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def broken(rank):
            if rank == 1: raise OSError("disk full")

        @pytest.mark.ranks(3)
        def test_setup(broken, group): group.barrier()

        @pytest.fixture
        def messy(rank):
            yield
            if rank == 2: raise OSError("can't clean")

        @pytest.mark.ranks(3)
        def test_teardown(messy): pass
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["rank 1 of 3: OSError: disk full*", "rank 2 of 3: OSError: can't clean*"])


def test_a_dynamic_request_on_a_rank_reaches_what_was_set_up(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def found(request, rank, tmp_path):
            assert request.getfixturevalue("tmp_path") == tmp_path
            return request.getfixturevalue("rank")

        @pytest.mark.ranks(2)
        def test_found(found, rank): assert found == rank

        @pytest.fixture
        def lost(request, rank):
            return request.getfixturevalue("recwarn")

        @pytest.mark.ranks(2)
        def test_lost(lost): pass
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*fixture 'recwarn' was not set up for this test; name it as an argument*"])


def test_a_fixture_of_ranks_can_be_overridden_and_extended(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def base(rank): return rank

        class TestOverride:
            @pytest.fixture
            def base(self, base): return base + 100

            @pytest.fixture
            def group(self, group, rank): return group, rank

            @pytest.mark.ranks(2)
            def test_override(self, group, base, rank):
                group[0].barrier()
                assert (group[1], base) == (rank, rank + 100)

        @pytest.mark.ranks(2)
        def test_not_overridden(group, base, rank):
            group.barrier()
            assert base == rank
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2)


def test_a_projects_own_fixture_of_the_same_name_wins(inner: InnerRuns, kind: str) -> None:
    inner.pytester.makeconftest("import pytest\n@pytest.fixture\ndef device(): return 'mine'")
    result = inner.run(
        """
        def test_alone(device): assert device == "mine"

        @pytest.mark.ranks(2)
        def test_on_ranks(device, rank): assert device == "mine"
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2)


def test_fixtures_made_by_functions_keep_their_values(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        def make(number):
            @pytest.fixture
            def made(rank): return number + rank
            return made

        ten, twenty = make(10), make(20)

        @pytest.fixture
        def factory(rank):
            made = []
            yield lambda value: made.append(value) or value + rank
            note("made", made)

        @pytest.mark.ranks(2)
        def test_made(ten, twenty, factory, rank, default=7):
            assert (ten, twenty, factory(5), default) == (10 + rank, 20 + rank, 5 + rank, 7)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["made [5]", "made [5]"]


def test_fixtures_of_other_plugins_with_the_same_names_win(inner: InnerRuns) -> None:
    inner.pytester.makepyfile(
        other_plugin="""
        import pytest

        @pytest.fixture
        def device(): return "another plugin's"
        """
    )
    inner.pytester.syspathinsert()
    result = inner.run(
        """
        def test_without_ranks(device): assert device == "another plugin's"

        @pytest.mark.ranks(2)
        def test_with_ranks(device, rank): assert device == "another plugin's"
        """,
        "-p",
        "other_plugin",
    )
    result.assert_outcomes(passed=2)

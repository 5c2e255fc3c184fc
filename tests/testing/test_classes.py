from __future__ import annotations

from tests.testing.inner_runs import InnerRuns


def test_setup_method_and_autouse_fixtures_prepare_self_for_every_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        class TestMethods:
            shared = "class"

            def setup_method(self, method):
                self.prepared = method.__name__

            def teardown_method(self):
                note("teardown_method")

            @pytest.fixture(autouse=True)
            def prepare(self):
                self.number = 3

            @pytest.fixture
            def own(self, rank):
                return self.number + rank

            @pytest.mark.ranks(2)
            def test_prepared(self, own, rank):
                assert (self.prepared, self.number, self.shared, own) == ("test_prepared", 3, "class", 3 + rank)
                note("ran", rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["ran 0", "ran 1", "teardown_method"]


def test_what_a_rank_sets_on_self_is_its_own(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        class TestSelf:
            @pytest.fixture(autouse=True)
            def mark(self, rank):
                self.mine = rank

            @pytest.mark.ranks(3)
            def test_self(self, group, rank):
                group.barrier()
                assert self.mine == rank
                self.mine = 10 * rank
                group.barrier()
                assert self.mine == 10 * rank
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)


def test_setup_class_and_setup_module_run_once(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        def setup_module():
            note("module")

        @pytest.mark.ranks(2)
        def test_before(rank): pass

        class TestOnce:
            @classmethod
            def setup_class(cls):
                cls.value = 5
                note("class")

            @pytest.mark.ranks(2)
            def test_first(self, rank): assert self.value == 5

            @pytest.mark.ranks(2)
            def test_second(self, rank): assert self.value == 5

            @staticmethod
            @pytest.mark.ranks(2)
            def test_static(rank): note("static", rank)
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=4)
    assert inner.notes() == ["class", "module", "static 0", "static 1"]


def test_an_inherited_test_runs_on_the_ranks_of_its_mark(inner: InnerRuns) -> None:
    result = inner.run(
        """
        class Cases:
            size = 0

            @pytest.mark.ranks(2)
            def test_case(self, rank, world_size):
                note(type(self).__name__, self.size, rank, world_size)

        class TestSmall(Cases): size = 1

        @pytest.mark.parametrize("extra", [7])
        class TestLarge(Cases):
            size = 2

            @pytest.fixture(autouse=True)
            def use(self, extra): assert extra == 7
        """
    )
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["TestLarge 2 0 2", "TestLarge 2 1 2", "TestSmall 1 0 2", "TestSmall 1 1 2"]

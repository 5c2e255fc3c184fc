"""Fixtures that can't work on ranks: found before anything hangs."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns


def test_a_fixture_that_cannot_be_pickled_is_refused_by_a_pool(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def steps(): return (number for number in range(3))

        @pytest.mark.ranks(2, kind="pool")
        def test_generator(steps, rank): note("ran")

        class TestInstance:
            @pytest.fixture(autouse=True)
            def prepare(self): self.steps = (number for number in range(3))

            @pytest.mark.ranks(2, kind="pool")
            def test_self(self, rank): note("ran")

        @pytest.mark.ranks(2, kind="pool")
        def test_after(group): group.barrier()
        """
    )
    result.assert_outcomes(failed=2, passed=1)
    told = (
        "can't be sent to warm ranks (TypeError: cannot pickle 'generator' object); run this test with kind=*process*"
    )
    result.stdout.fnmatch_lines([f"fixture 'steps' is a generator, which {told}", f"the test's instance is a *{told}"])
    assert not inner.notes()


_LOCKS = """
@pytest.fixture
def {name}():
    lock = {lock}
    lock.acquire()
    yield {value}
    lock.release()

@pytest.mark.ranks(2)
def test_{name}({name}, rank): note("ran")
"""


def test_a_fixture_that_holds_a_taken_lock_is_refused(inner: InnerRuns) -> None:
    cases = {"plain": "lock", "listed": "[lock]", "named": '{"lock": lock}', "inside": "Holder(lock)"}
    source = "class Holder:\n    def __init__(self, lock): self.lock = lock\n" + "".join(
        _LOCKS.format(name=name, lock="threading.Lock()", value=value) for name, value in cases.items()
    )
    result = inner.run(source)
    result.assert_outcomes(failed=4)
    for name in cases:
        result.stdout.fnmatch_lines(
            [f"fixture '{name}' holds a lock that is taken; ranks are copies*Release it before*kind=\"thread\""]
        )
    assert not inner.notes()


def test_a_fixture_with_a_free_lock_is_fine(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def lock(): return threading.Lock()

        @pytest.fixture
        def own_lock():
            lock = threading.RLock()
            with lock: yield lock

        @pytest.mark.ranks(2, kind=["process", "thread"])
        def test_lock(lock, rank):
            with lock: note("held")

        @pytest.mark.ranks(2)
        def test_own_lock(own_lock, rank):
            with own_lock: note("held")
        """
    )
    result.assert_outcomes(passed=3)
    assert inner.notes() == ["held"] * 6


_USES = {
    "attribute": ("group", "{}.size"),
    "sum": ("rank", "{} + 1"),
    "product": ("rank", "10 * {}"),
    "comparison": ("rank", "{} == 0"),
    "order": ("rank", "{} < 1"),
    "truth": ("rank", "bool({})"),
    "number": ("rank", "int({})"),
    "text": ("rank", "'{{}}'.format({})"),
    "index": ("rank", "[1, 2][{}]"),
    "path": ("rank_tmp_path", "{} / 'file'"),
}


def test_a_value_of_the_ranks_used_in_pytests_own_process_is_named(inner: InnerRuns) -> None:
    tests = [
        f"""
@pytest.fixture
def sneaky_{name}(request):
    note({use.format(f"request.getfixturevalue({fixture!r})")})

@pytest.mark.ranks(2)
def test_{name}(sneaky_{name}, rank): note("ran")
"""
        for name, (fixture, use) in _USES.items()
    ]
    result = inner.run("".join(tests))
    assert not inner.notes()
    result.assert_outcomes(errors=len(_USES))
    told = (
        "E*fixture '{}' has a value on the ranks only, not in pytest's own process; a fixture that needs it must name*"
    )
    result.stdout.fnmatch_lines([told.format(fixture) for fixture, _ in _USES.values()])


def test_a_fixture_of_ranks_that_yields_twice_is_refused(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def twice(rank):
            yield 1
            yield 2

        @pytest.mark.ranks(2)
        def test_twice(twice): pass
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2: *UsageError: fixture 'twice' yields more than once*"])


@pytest.mark.parametrize("style", ["missing", "recursive"])
def test_pytests_own_errors_about_fixtures_stay(inner: InnerRuns, style: str) -> None:
    source = {
        "missing": "@pytest.mark.ranks(2)\ndef test_missing(no_such_fixture, rank): pass",
        "recursive": "@pytest.fixture\ndef loop(loop, rank): pass\n@pytest.mark.ranks(2)\ndef test_loop(loop): pass",
    }
    result = inner.run(source[style])
    result.assert_outcomes(errors=1)
    told = {"missing": "*fixture 'no_such_fixture' not found", "recursive": "*recursive dependency*"}
    result.stdout.fnmatch_lines([told[style]])

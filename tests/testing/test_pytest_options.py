"""-x, --lf, -k, --collect-only, --setup-show and junit XML with tests on ranks."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.testing.inner_runs import InnerRuns

_MIXED = """
@pytest.mark.ranks(2)
def test_1(rank): note("1")

@pytest.mark.ranks(2)
def test_2(group, rank):
    note("2")
    print("said by", rank)
    assert rank == 0
    group.barrier()

@pytest.mark.ranks(2)
def test_3(rank): note("3")

@pytest.mark.ranks([1, 2])
def test_4(rank, world_size): assert world_size == 1
"""


def test_x_stops_at_the_first_failure(inner: InnerRuns, kind: str) -> None:
    inner.run(_MIXED, "-x", f"--ranks-kind={kind}").assert_outcomes(passed=1, failed=1)
    assert inner.notes() == ["1", "1", "2", "2"]


@pytest.mark.slow
def test_lf_runs_what_failed_last(inner: InnerRuns) -> None:
    inner.run(_MIXED).assert_outcomes(passed=3, failed=2)
    result = inner.run(_MIXED, "--lf", "-v")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*::test_2 FAILED*", "*::test_4[[]ranks-2] FAILED*"])


def test_k_and_ids_choose_a_number_of_ranks(inner: InnerRuns) -> None:
    inner.run(_MIXED, "-k", "ranks-1").assert_outcomes(passed=1, deselected=4)
    inner.run(_MIXED, "test_inner.py::test_4[ranks-2]").assert_outcomes(failed=1)


def test_nothing_is_started_to_collect(inner: InnerRuns) -> None:
    result = inner.run(_MIXED, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_1", "*::test_2", "*::test_3", "*::test_4[[]ranks-1]", "*::test_4[[]ranks-2]"])
    assert not inner.notes()


def test_junit_xml_names_the_failing_rank(inner: InnerRuns, kind: str) -> None:
    inner.run(_MIXED, "--junitxml=report.xml", f"--ranks-kind={kind}", "-o", "junit_logging=all")
    cases = {case.get("name"): case for case in ElementTree.parse(inner.pytester.path / "report.xml").iter("testcase")}
    assert list(cases) == ["test_1", "test_2", "test_3", "test_4[ranks-1]", "test_4[ranks-2]"]
    failure = cases["test_2"].find("failure")
    assert failure is not None
    assert re.match(r"rank 1( of 2)?: AssertionError: assert 1 == 0 \(test_inner.py:", str(failure.get("message")))
    assert "rank 1 of 2: AssertionError" in str(failure.text)
    assert "assert rank == 0" in str(failure.text)
    assert "said by 1" in ElementTree.tostring(cases["test_2"], encoding="unicode")
    assert cases["test_1"].find("failure") is None


def test_the_mark_is_declared(inner: InnerRuns) -> None:
    inner.run(_MIXED, "--strict-markers", "--strict-config", "-k", "test_1").assert_outcomes(passed=1, deselected=4)
    result = inner.run(_MIXED, "--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.ranks(n, [*], kind, timeout, backend, device, gpus, races): run the test on n ranks*",
            "@pytest.mark.virtual_gpus(n=4, [*], gpu, races, timeout): run the test in a separate process*",
        ]
    )
    helped = inner.run(_MIXED, "--help")
    helped.stdout.fnmatch_lines(["*--ranks-kind*", "*--ranks-backend*", "*--ranks-timeout*"])


def test_setup_show_and_durations_work(inner: InnerRuns) -> None:
    result = inner.run(_MIXED, "--setup-show", "--durations=3", "-k", "test_1")
    result.assert_outcomes(passed=1, deselected=4)
    result.stdout.fnmatch_lines(["*test_inner.py::test_1*"])


def test_fixtures_have_descriptions(inner: InnerRuns) -> None:
    result = inner.run("", "--fixtures")
    for name, told in (("rank", "The number of this rank."), ("group", "A new group of all ranks of the test*")):
        result.stdout.fnmatch_lines([f"{name} -- *", f"    {told}"])

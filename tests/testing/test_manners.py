"""How the plugin treats projects that do not use it, or that use its names for something else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.testing.inner_runs import OF_EDITABLE_INSTALLS, InnerRuns, chosen

_STRICT = ("--strict-markers", "--strict-config", "-W", "error", "-W", OF_EDITABLE_INSTALLS)
_OWN_MARKS = """
@pytest.mark.ranks("captain", "major")
@pytest.mark.virtual_gpus("none")
def test_own(): note("ran")

@pytest.mark.ranks([2, 4])
def test_looks_like_ours(): note("ran")
"""


_LINES = ("ranks: of the army", "virtual_gpus(why): none are needed")
_DECLARE = "def pytest_configure(config):\n" + "".join(
    f"    config.addinivalue_line('markers', {line!r})\n" for line in _LINES
)


_LISTED = "[pytest]\nmarkers =\n  " + "\n  ".join(_LINES)


@pytest.mark.parametrize("where", ["ini", "conftest", "both"])
def test_markers_that_a_project_declares_are_its_own(inner: InnerRuns, where: str) -> None:
    if where == "ini":
        inner.pytester.makeini(f"{_LISTED}\nranks_marker = project")
    else:
        inner.pytester.makeconftest(_DECLARE)
    if where == "both":
        inner.pytester.makeini(_LISTED)
    result = inner.run(_OWN_MARKS, *_STRICT)
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["ran", "ran"]
    result.stdout.fnmatch_lines(["phalanx: *'ranks' of its own*", "phalanx: *'virtual_gpus' of its own*"])


def test_marks_of_a_listed_marker_are_the_projects_if_it_uses_nothing_of_phalanx(inner: InnerRuns) -> None:
    inner.pytester.makeini(_LISTED)
    own = "@pytest.fixture\ndef rank(): return 'captain'\n\n@pytest.mark.ranks(2)\ndef test_rank(rank): note(rank)\n"
    result = inner.run(own + _OWN_MARKS, *_STRICT)
    result.assert_outcomes(passed=3)
    assert inner.notes() == ["captain", "ran", "ran"]
    result.stdout.fnmatch_lines(["phalanx: this project lists a marker 'ranks', so *only if they use phalanx"])


@pytest.mark.parametrize(
    "use",
    [
        "def test_ranks(rank): note(rank)",
        "import phalanx\n@MARK\ndef test_ranks(): note(phalanx.connect().rank)",
        "from phalanx import connect\n@MARK\ndef test_ranks(): note(connect().rank)",
    ],
    ids=["fixture", "import phalanx", "from phalanx import"],
)
def test_a_listed_marker_is_phalanx_s_where_a_test_uses_phalanx(inner: InnerRuns, use: str) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = ranks: run on several ranks")
    marked = use.replace("@MARK", "@pytest.mark.ranks([1, 2])")
    result = inner.run(marked if marked != use else f"@pytest.mark.ranks([1, 2])\n{use}", *_STRICT)
    result.assert_outcomes(passed=2)
    assert inner.notes() == ["0", "0", "1"]


def test_a_listed_marker_is_phalanx_s_where_a_conftest_uses_phalanx(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = ranks: run on several ranks")
    inner.pytester.makeconftest("from phalanx.testing import assert_same_on_ranks")
    result = inner.run("@pytest.mark.ranks(2)\ndef test_ranks(): note(os.environ['RANK'])", *_STRICT)
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["0", "1"]


@pytest.mark.parametrize(
    ("listed", "mark", "fixture"),
    [
        ("ranks: run on several ranks", "ranks(2)", "rank"),
        ("virtual_gpus(n): have n", "virtual_gpus(2)", "virtual_gpus"),
    ],
)
def test_a_test_whose_mark_may_be_ours_does_not_pass_on_no_ranks(
    inner: InnerRuns, listed: str, mark: str, fixture: str
) -> None:
    inner.pytester.makeini(f"[pytest]\nmarkers = {listed}")
    name = mark.partition("(")[0]
    tests = "".join(
        f"@pytest.mark.{mark}\n@pytest.mark.skipif({is_skipped}, reason='not here')\n{test}\n\n"
        for is_skipped, test in ((False, "def test_never(): note('ran')"), (True, f"def test_ours({fixture}): pass"))
    )
    result = inner.run(tests, *_STRICT)
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            f"@pytest.mark.{name} may mean phalanx's marker or one of this project: *",
            f'  do       write "{name}(n): ... (phalanx)" there, or ranks_marker = project if *',
            "*-p no:phalanx switches it off",
        ]
    )
    assert not inner.notes()


def test_a_listed_marker_can_be_given_to_phalanx(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = ranks: run on several ranks\nranks_marker = phalanx")
    result = inner.run("@pytest.mark.ranks(2)\ndef test_ranks(rank): note(rank)", *_STRICT)
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["0", "1"]


def test_nobody_else_can_have_it(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nranks_marker = army")
    result = inner.run("def test_never(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ranks_marker is 'army'; give one of phalanx, project; *switches it off"])


def test_a_folder_may_declare_them_for_itself(inner: InnerRuns) -> None:
    folder = inner.pytester.mkdir("folder")  # pytest reads its conftest after ours has declared the markers
    folder.joinpath("conftest.py").write_text(_DECLARE)
    folder.joinpath("test_inner.py").write_text(f"import pytest\nnote = print\n{_OWN_MARKS}")
    result = inner.pytester.runpytest_inprocess(*chosen(()), *_STRICT)
    result.assert_outcomes(passed=2)


def test_a_fixture_of_ours_says_why_there_are_no_ranks_in_such_a_project(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = ranks: of the army\nranks_marker = project")
    result = inner.run("@pytest.mark.ranks(2)\ndef test_never(group): note('ran')")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*fixture 'group' of phalanx needs ranks, but this project declares a marker 'ranks'*"]
    )
    assert not inner.notes()


def test_a_project_may_declare_our_marker_too(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nmarkers = ranks(n): run on n ranks, with phalanx where it is installed")
    result = inner.run("@pytest.mark.ranks(2)\ndef test_ranks(rank): note(rank)", *_STRICT)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("phalanx: this project*")
    assert inner.notes() == ["0", "1"]


def test_a_marker_that_nobody_has_declared_is_ours_and_its_error_says_what_to_do(inner: InnerRuns) -> None:
    result = inner.run("@pytest.mark.ranks('captain')\ndef test_never(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["@pytest.mark.ranks and *belong to phalanx.*-p no:phalanx switches it off"])


def test_fixtures_of_a_project_are_its_own(inner: InnerRuns) -> None:
    names = ["group", "rank", "world_size", "device", "process_group", "ranks_kind", "rank_tmp_path", "virtual_gpus"]
    own = "".join(f"@pytest.fixture\ndef {name}(): return 'own {name}'\n\n" for name in names)
    inner.pytester.makeconftest(f"import pytest\n\n{own}")
    result = inner.run(
        f"""
        def test_own({", ".join(names)}):
            assert [{", ".join(names)}] == [f"own {{name}}" for name in {names}]
        """,
        *_STRICT,
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_broken_installation_hurts_only_tests_on_ranks_and_says_whose_plugin_it_is(inner: InnerRuns) -> None:
    inner.pytester.makeconftest("import sys\nsys.modules['phalanx.engine'] = None\n")
    result = inner.run_apart("def test_plain(): pass\n\n@pytest.mark.ranks(2)\ndef test_ranks(rank): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *this comes from the pytest plugin of phalanx; -p no:phalanx switches it off"])
    result = inner.run_apart("def test_plain(): pass", *_STRICT)
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_project_of_the_strictest_kind_passes_without_a_warning(inner: InnerRuns) -> None:
    of_editable_installs = "ignore:Module already imported so cannot be rewritten. _editable"
    strict = f"addopts = --strict-markers --strict-config\nfilterwarnings =\n  error\n  {of_editable_installs}"
    inner.pytester.makeini(f"[pytest]\n{strict}")
    # As pytest itself does for the package of an installed plugin, which may have been imported before.
    inner.pytester.makeconftest("import pytest\npytest.register_assert_rewrite('phalanx')")
    inner.pytester.makepyfile(test_plain="def test_plain(): pass")
    plugins_left_out = chosen(())[2:]
    code = f"import torch, phalanx, pytest; raise SystemExit(pytest.main({plugins_left_out!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=inner.pytester.path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed in" in done.stdout
    assert done.stderr == ""

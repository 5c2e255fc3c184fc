"""What loading the plugin costs: nothing for sessions that have no tests on ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.testing.inner_runs import InnerRuns, chosen

_UNWANTED = ("torch", "numpy", "phalanx.groups.shared_memory", "hypothesis", "coverage")


def _modules_after(code: str, folder: str) -> set[str]:
    code += "\nimport sys; print('loaded modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.rpartition("loaded modules: ")[2].split())


def test_loading_the_plugin_imports_no_torch(pytester: pytest.Pytester) -> None:
    modules = _modules_after("import phalanx.testing.plugin", str(pytester.path))
    assert "phalanx.testing.plugin" in modules
    assert not modules & set(_UNWANTED)


@pytest.mark.parametrize("arguments", [["--version"], ["--collect-only"]], ids=["version", "collecting"])
@pytest.mark.slow
def test_a_session_that_runs_no_ranks_imports_no_torch(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makepyfile(test_ranks="import pytest\n@pytest.mark.ranks([2, 4])\ndef test_ranks(group): pass")
    modules = _modules_after(f"import pytest; assert pytest.main({arguments!r}) == 0", str(pytester.path))
    assert ("phalanx.testing.plugin" in modules) == (arguments != ["--version"])
    assert "torch" not in modules


# What every session of pytest imports where phalanx is installed. Nothing here may import much.
_LIGHT = {
    "phalanx",
    "phalanx.real_gpus",
    "phalanx.real_gpus.device_files",
    "phalanx.testing",
    *(f"phalanx.testing.{name}" for name in ("fixtures", "kinds", "markers", "plugin", "ranks_warning", "stash_keys")),
}


@pytest.mark.slow
def test_a_session_without_tests_on_ranks_imports_next_to_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_plain="def test_plain(tmp_path, capsys): pass\n\nclass TestPlain:\n  def test_it(self): pass"
    )
    run = "import pytest; assert pytest.main({!r}) == 0"
    found = _modules_after(run.format(chosen(())), str(pytester.path))
    without = _modules_after(run.format([*chosen(()), "-p", "no:phalanx"]), str(pytester.path))
    assert {name for name in found - without if not name.startswith("phalanx")} == set()
    assert {name for name in found if name.startswith("phalanx")} <= _LIGHT


def test_public_names_are_imported_on_first_use(pytester: pytest.Pytester) -> None:
    modules = _modules_after("import phalanx.testing", str(pytester.path))
    assert "phalanx.testing.world" not in modules
    code = "import phalanx.testing\nfor name in phalanx.testing.__all__: getattr(phalanx.testing, name)"
    assert "phalanx.testing.world" in _modules_after(code, str(pytester.path))


@pytest.mark.slow
def test_a_fresh_rank_has_nothing_left_to_import(inner: InnerRuns) -> None:
    """What a rank imports, every rank of every test imports: that belongs before the fork."""
    result = inner.run_apart(
        """
        import sys

        @pytest.fixture
        def before(): return set(sys.modules)

        @pytest.mark.ranks(2)
        def test_first(group, process_group): pass

        @pytest.mark.ranks(2)
        def test_second(before, group, process_group, rank, device, rank_tmp_path, caplog, capsys):
            group.barrier()
            assert not {name for name in set(sys.modules) - before if name.startswith(("torch", "phalanx", "_pytest"))}
        """
    )
    result.assert_outcomes(passed=2)

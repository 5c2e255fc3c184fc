"""What editors and people at a prompt see of the package: its names, its version, and its command."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import phalanx


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_dir_lists_all_public_names_before_any_of_them_is_used() -> None:
    shown = _python("-c", "import phalanx, sys; print(*dir(phalanx)); print('torch' in sys.modules)")
    names, has_torch = shown.stdout.splitlines()
    assert {*phalanx.__all__, "__version__", "__doc__"} <= set(names.split())
    assert has_torch == "False"


def test_dir_lists_no_other_names() -> None:
    shown = _python("-c", "import phalanx; phalanx.spawn; print(*dir(phalanx))")
    names = {name for name in shown.stdout.split() if not name.startswith("__")}
    assert names == set(phalanx.__all__)


@pytest.mark.parametrize("name", ["testing.ranks", "testing.unittest.MultiProcessTestCase", "devices.no_leaks"])
def test_a_public_subpackage_needs_no_import_of_its_own(name: str) -> None:
    shown = _python("-c", f"import phalanx; print(callable(phalanx.{name}))")
    assert shown.stdout == "True\n", shown.stderr


def test_the_package_imports_none_of_its_subpackages_unless_asked() -> None:
    shown = _python("-c", "import phalanx, sys; dir(phalanx); print(*sys.modules)")
    assert not {"phalanx.testing", "phalanx.devices"} & set(shown.stdout.split())


def test_every_listed_name_can_be_used() -> None:
    assert all(hasattr(phalanx, name) for name in dir(phalanx))


def test_the_version_is_that_of_the_installed_package() -> None:
    assert phalanx.__version__ == importlib.metadata.version("phalanx")


def test_the_version_needs_neither_torch_nor_the_engine() -> None:
    shown = _python("-c", "import phalanx, sys; phalanx.__version__; print(*sys.modules)")
    assert not {"torch", "phalanx.engine"} & set(shown.stdout.split())


def test_the_package_imports_nothing_to_find_the_version_unless_asked() -> None:
    shown = _python("-S", "-c", f"import sys; sys.path = {sys.path!r}; import phalanx; print(*sys.modules)")
    assert shown.returncode == 0, shown.stderr
    assert "importlib.metadata" not in shown.stdout.split()


def test_python_m_phalanx_is_the_command() -> None:
    as_module = _python("-m", "phalanx", "--help")
    assert as_module.returncode == 0, as_module.stderr
    assert as_module.stdout == _python("-c", "from phalanx.cli import main; main(['--help'])").stdout
    assert as_module.stdout.startswith("Usage: phalanx ")


def test_python_m_phalanx_fails_as_the_command_does() -> None:
    failed = _python("-m", "phalanx", "no-such-command")
    assert failed.returncode == 2
    assert "No such command 'no-such-command'" in failed.stderr

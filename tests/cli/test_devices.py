"""`phalanx devices`: what it prints, and that it starts without torch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from phalanx.cli.devices import devices
from phalanx.cli.main import main
from phalanx.virtual_gpus.building import cache, library, recipe
from tests.virtual_gpus.in_child import run_script


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds lie in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "phalanx" / "devices"


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that builds an empty library, whatever it is told."""
    path = tmp_path / "compiler"
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "test compiler 1.0" && exit 0\n'
        'while [ "$1" != -o ]; do shift; done\necho | exec g++ -shared -x c++ - -o "$2"\n'
    )
    path.chmod(0o700)
    monkeypatch.setenv("CXX", str(path))


def test_help_needs_no_torch() -> None:
    text = (
        "import sys\nfrom phalanx.cli import main\n"
        "try:\n    main(['devices', '--help'])\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    ended = run_script(text)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("False\n")
    assert re.search(r"^  build  .*^  show  ", ended.stdout, re.MULTILINE | re.DOTALL)


def test_the_command_is_there() -> None:
    assert main.commands["devices"] is devices


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
def test_build_prints_where_and_does_it_once(home: Path) -> None:
    first = CliRunner().invoke(devices, ["build"])
    assert first.exit_code == 0, first.output
    printed = Path(first.stdout.strip())
    assert printed == home / recipe.make_recipe().name / cache.LIBRARY
    built_at = printed.stat().st_mtime_ns
    again = CliRunner().invoke(devices, ["build"])
    assert (again.exit_code, again.stdout, again.stderr) == (0, first.stdout, "")
    assert printed.stat().st_mtime_ns == built_at


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
def test_show_says_what_is_there(tmp_path: Path) -> None:
    before = CliRunner().invoke(devices, ["show"])
    assert before.exit_code == 0, before.output
    assert f"torch     {torch.__version__}\n" in before.output
    assert "built     not yet; the first use builds it, or: phalanx devices build\n" in before.output
    assert f"compiler  {tmp_path / 'compiler'} (test compiler 1.0)\n" in before.output
    path = library.built_library()
    after = CliRunner().invoke(devices, ["show"])
    assert f"built     {path}\n" in after.output


def test_show_says_that_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = CliRunner().invoke(devices, ["show"])
    assert shown.exit_code == 0
    assert "compiler  none: virtual devices need a C++ compiler to be built" in shown.output


def test_a_build_that_fails_says_why_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    failed = CliRunner().invoke(devices, ["build"])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Error: virtual devices need a C++ compiler to be built, and there is none")
    assert "Traceback" not in failed.output
    assert sys.executable not in failed.output

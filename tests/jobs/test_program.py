from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.jobs.program import Program, find_executable, find_program


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("syn.py").write_text("")
    for name in ("empty", "runnable", "package"):
        Path(name).mkdir()
    Path("runnable/__main__.py").write_text("")
    Path("package/__init__.py").write_text("raise RuntimeError('the launcher must not import this')")
    Path("package/tool.py").write_text("")
    with zipfile.ZipFile("archive.zip", "w") as archive:
        archive.writestr("__main__.py", "")


@pytest.mark.parametrize(
    ("target", "is_module", "kind"),
    [
        ("train.py", False, "script"),
        ("runnable", False, "folder"),
        ("archive.zip", False, "folder"),
        ("train", True, "module"),
        ("package.tool", True, "module"),
        ("runnable", True, "module"),
        ("json.tool", True, "module"),
    ],
)
def test_programs_are_found_without_importing_them(target: str, is_module: bool, kind: str) -> None:
    assert find_program(target, ["a", "--b"], is_module=is_module) == Program(kind, target, ("a", "--b"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "is_module", "words"),
    [
        ("trian.py", False, "trian.py: no such file; did you mean train.py?"),
        ("runable", False, "did you mean runnable?"),
        ("nowhere/train.py", False, "there is no folder nowhere"),
        ("completely-different", False, "completely-different: no such file"),
        ("python3", False, "python3: no such file; leave python3 out, as phalanx run takes a script"),
        ("sh", False, "sh: no such file; for an executable, give --no-python before it"),
        ("empty", False, "empty is a folder without __main__.py"),
        ("trian", True, "no module named trian; did you mean train?"),
        ("train.py", True, "give train.py without -m"),
        ("train.deeper", True, "no module named train.deeper: train is not a package"),
        ("package", True, "package is a package without __main__.py"),
        ("package.tol", True, "no module named package.tol; did you mean package.tool?"),
        ("", False, "folder without __main__.py"),
    ],
)
def test_a_program_that_is_not_there_is_refused_with_advice(target: str, is_module: bool, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_program(target, [], is_module=is_module)
    assert words in str(caught.value)


def test_executables_are_found_in_path_and_by_path() -> None:
    Path("tool").write_text("#!/bin/sh\n")
    Path("tool").chmod(0o755)
    here = str(Path.cwd())
    for target, search in (("./tool", None), ("tool", here), ("sh", None)):
        found = find_executable(target, ["-a"], search=search)
        assert (found, found.command) == (Program("executable", target, ("-a",)), [target, "-a"])


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("train.py", "no command train.py is in PATH; for the file in this folder, give ./train.py"),
        ("no-such-command", "no command no-such-command is in PATH; give the path of an executable"),
        ("./nothing", "./nothing: no such file"),
        ("./train.py", "./train.py: you may not execute this file; `chmod +x ./train.py` allows it"),
    ],
)
def test_an_executable_that_is_not_there_is_refused_with_advice(target: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_executable(target, [], search=None)
    assert words in str(caught.value)


def test_an_unlike_name_is_not_suggested() -> None:
    with pytest.raises(UsageError, match=r"missing\.py: no such file$"):
        find_program("missing.py", [], is_module=False)

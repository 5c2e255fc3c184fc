"""The library of virtual devices: found, built once, refused, explained. Built here from a source of two lines."""

from __future__ import annotations

import ctypes
import errno
import io
import multiprocessing
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest
import torch

from phalanx.errors import BuildError
from phalanx.virtual_gpus.building import built_library, cache, compiling, find_builds, recipe
from phalanx.virtual_gpus.building.compiling import find_compiler
from phalanx.virtual_gpus.building.progress import Progress

_GOOD = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds lie in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "phalanx" / "devices"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / recipe.MAIN_SOURCE).write_text(_GOOD)
    return folder


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def progress(said: io.StringIO) -> Progress:
    return Progress(said)


def _compiler(folder: Path, body: str) -> str:
    """Write a compiler, as a shell script."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "test compiler 1.0" && exit 0\n{body}\n')
    path.chmod(0o700)
    return str(path)


def _count_runs(folder: Path) -> str:
    """Write a compiler that is the real one and notes every run."""
    return _compiler(folder, f'echo run >> "{folder}/runs"\nexec g++ "$@"')


def _runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


@pytest.mark.slow
def test_the_first_use_builds_and_the_next_one_finds(
    tmp_path: Path, home: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress, said: io.StringIO
) -> None:
    monkeypatch.setenv("CXX", _count_runs(tmp_path))
    library = built_library(progress, sources)
    assert ctypes.CDLL(str(library)).answer() == 42
    assert library.parent.parent == home
    assert library.parent.name.startswith(f"{torch.__version__}-")
    first, last = said.getvalue().splitlines()
    assert first == "phalanx: building the virtual devices for this torch, once, about half a minute"
    assert last.startswith("phalanx: the virtual devices are built (")
    assert built_library(progress, sources) == library
    assert _runs(tmp_path) == 1
    assert len(said.getvalue().splitlines()) == 2


@pytest.mark.slow
def test_nobody_else_can_read_or_write_a_build(home: Path, sources: Path, progress: Progress) -> None:
    library = built_library(progress, sources)
    for path in (home, library.parent, library):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_changed_source_is_built_anew(sources: Path, progress: Progress) -> None:
    before = built_library(progress, sources)
    (sources / "part.hpp").write_text("// another part\n")
    after = built_library(progress, sources)
    assert before != after
    assert find_builds(sources) == (after, [before.parent])


@pytest.mark.slow
def test_a_built_library_needs_no_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress) -> None:
    library = built_library(progress, sources)
    monkeypatch.setenv("PATH", "")
    assert built_library(progress, sources) == library


def _build_in_process(sources: Path, results: multiprocessing.queues.Queue[str]) -> None:
    said = io.StringIO()
    library = built_library(Progress(said), sources)
    results.put(f"{library}\n{said.getvalue()}")


@pytest.mark.slow
def test_of_processes_that_start_together_one_builds(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, f'echo run >> "{tmp_path}/runs"\nsleep 1\nexec g++ "$@"'))
    context = multiprocessing.get_context("fork")
    results: multiprocessing.queues.Queue[str] = context.Queue()
    processes = [context.Process(target=_build_in_process, args=(sources, results)) for _ in range(4)]
    for process in processes:
        process.start()
    told = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert len({text.partition("\n")[0] for text in told}) == 1
    assert _runs(tmp_path) == 1
    builder = [text for text in told if "are built" in text]
    assert len(builder) == 1
    assert [text for text in told if "waiting for process" not in text] == builder


def test_the_wait_for_another_builder_is_bounded(tmp_path: Path, progress: Progress) -> None:
    with cache.only_builder(tmp_path, "build", progress):
        with pytest.raises(BuildError, match=rf"process {os.getpid()} has been building the virtual devices"):
            with cache.only_builder(tmp_path, "build", progress, timeout_s=0.06):
                pytest.fail("two build at once")


def test_no_compiler_is_said_with_what_to_do(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as failure:
        built_library(progress, sources)
    told = str(failure.value).splitlines()
    assert told[0].startswith("virtual devices need a C++ compiler to be built, and there is none (g++, c++, clang++")
    assert "apt install g++" in told[1]


@pytest.mark.parametrize("named", ["/no/such/compiler", 'g++ "', "none-such -O3"])
def test_a_compiler_that_is_not_there_is_named(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(BuildError) as failure:
        find_compiler()
    assert f'CXX is "{named}", which can\'t be started' in str(failure.value)


def test_cxx_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{_compiler(tmp_path, 'exit 0')} -O3")
    found = find_compiler()
    assert found.command == (str(tmp_path / "compiler"), "-O3")


def test_a_failing_compiler_is_quoted_and_its_log_kept(
    tmp_path: Path, home: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    lines = 'for n in 1 2 3; do echo "note $n"; done; echo "core.cpp:1:2: error: no such thing"; exit 3'
    monkeypatch.setenv("CXX", _compiler(tmp_path, lines))
    with pytest.raises(BuildError) as failure:
        built_library(progress, sources)
    told = str(failure.value)
    assert told.splitlines()[0].endswith("compiler failed with exit code 3")
    assert "  core.cpp:1:2: error: no such thing\n" in told
    assert "note 1" not in told
    log = Path(failure.value.log)
    assert str(log) in told
    assert "note 1" in log.read_text()
    assert not list(home.glob(".building-*"))


def test_a_compiler_that_was_killed_is_said_to_be(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "kill -9 $$"))
    with pytest.raises(BuildError, match=r"was ended by signal 9\n.*short of memory"):
        built_library(progress, sources)


def test_a_full_disk_is_said_to_be_full(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, 'echo "fatal error: error writing: No space left on device"; exit 1'))
    with pytest.raises(BuildError, match=r"no space left on the device\n.*TMPDIR"):
        built_library(progress, sources)


def test_a_disk_that_is_full_for_us_too_is_said_to_be_full(
    sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    def mkdtemp(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache")

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with pytest.raises(BuildError, match=r"could not be built: no space left on the device \(/cache\)"):
        built_library(progress, sources)


def test_a_compiler_that_never_ends_is_ended(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, f'echo $$ > "{tmp_path}/pid"; sleep 300'))
    monkeypatch.setattr(compiling, "COMPILE_TIMEOUT_S", 0.1)
    with pytest.raises(BuildError, match="the compiler had not built the virtual devices within 0 s"):
        built_library(progress, sources)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.slow
def test_a_library_that_can_not_be_loaded_is_built_once_more(sources: Path, progress: Progress) -> None:
    library = built_library(progress, sources)
    library.unlink()  # not written over: this process has it mapped
    library.write_bytes(b"nonsense")
    library.chmod(0o700)
    assert built_library(progress, sources) == library
    assert ctypes.CDLL(str(library)).answer() == 42


@pytest.mark.slow
def test_a_fresh_build_that_torch_can_not_load_is_an_error(sources: Path, progress: Progress) -> None:
    (sources / recipe.MAIN_SOURCE).write_text("void missing_from_torch(); void use() { missing_from_torch(); }\n")
    with pytest.raises(BuildError, match=r"were built, but this torch can't load them: .*undefined symbol"):
        built_library(progress, sources)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["library", "folder"])
def test_what_others_can_write_to_is_not_loaded(part: str, sources: Path, progress: Progress) -> None:
    library = built_library(progress, sources)
    changed = library if part == "library" else library.parent
    changed.chmod(0o777)
    with pytest.raises(BuildError) as failure:
        built_library(progress, sources)
    assert f"not loaded: {changed} can be written to by other users (mode 777)" in str(failure.value)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
def test_what_belongs_to_another_user_is_not_loaded(sources: Path, progress: Progress) -> None:
    library = built_library(progress, sources)
    os.chown(library, 12345, -1)
    with pytest.raises(BuildError, match=r"belongs to another user \(uid 12345\)"):
        built_library(progress, sources)


@pytest.mark.slow
def test_without_a_home_that_can_be_written_to_builds_go_to_a_private_temporary_folder(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    library = built_library(progress, sources)
    assert library.parent.parent == tmp_path / f"phalanx-{os.geteuid()}" / "devices"
    assert built_library(progress, sources) == library


def test_a_temporary_folder_that_somebody_prepared_is_refused(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "trap").mkdir()
    (tmp_path / f"phalanx-{os.geteuid()}").symlink_to(tmp_path / "trap")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(BuildError, match=r"no folder to keep them in .* is a link\)"):
        built_library(progress, sources)


def test_missing_headers_are_named(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    with pytest.raises(BuildError, match=r"this torch has none: there is no .*torch/include/ATen/ATen\.h"):
        built_library(progress, sources)


def test_missing_sources_are_named(tmp_path: Path, progress: Progress) -> None:
    with pytest.raises(BuildError, match=f"the sources of virtual devices are not in {tmp_path}"):
        built_library(progress, tmp_path)


def test_of_old_builds_the_last_used_stay(tmp_path: Path) -> None:
    for number in range(9):
        build = tmp_path / f"2.13.0-{number}"
        build.mkdir()
        (build / cache.LIBRARY).touch()
        os.utime(build, (time.time() - number, time.time() - number))
    cache.remove_old(tmp_path)
    assert [build.name for build in cache.list_builds(tmp_path)] == [f"2.13.0-{number}" for number in range(6)]


def test_what_a_killed_builder_left_goes_after_a_day(tmp_path: Path) -> None:
    fresh, old = tmp_path / ".building-fresh", tmp_path / ".building-old"
    for folder in (fresh, old):
        folder.mkdir()
    os.utime(old, (time.time() - 100_000, time.time() - 100_000))
    cache.remove_old(tmp_path)
    assert fresh.exists()
    assert not old.exists()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> _Terminal:
    return _Terminal()


def test_on_a_terminal_one_line_counts_the_seconds(terminal: _Terminal) -> None:
    progress = Progress(terminal)
    progress.show("building", 0.2)
    progress.show("building", 1.2)
    progress.end("built")
    written = terminal.getvalue()
    assert written == "\r\x1b[Kphalanx: building (0 s)\r\x1b[Kphalanx: building (1 s)\r\x1b[Kphalanx: built\n"


def test_elsewhere_nothing_is_said_twice(said: io.StringIO, progress: Progress) -> None:
    progress.show("building", 0.2)
    progress.show("building", 1.2)
    progress.end("built")
    assert said.getvalue() == "phalanx: building\nphalanx: built\n"

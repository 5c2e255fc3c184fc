"""Find the library of virtual devices, or build it. The first process builds it; others wait for that."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from phalanx.errors import BuildError
from phalanx.virtual_gpus.building import cache
from phalanx.virtual_gpus.building.compiling import compile_library, find_compiler
from phalanx.virtual_gpus.building.progress import Progress
from phalanx.virtual_gpus.building.recipe import SOURCES, Recipe, check_headers, make_recipe


def built_library(progress: Progress | None = None, sources: Path = SOURCES) -> Path:
    """Return the library for the torch of this process; build it if there is none.

    Args:
        progress: Shows what is going on; by default in a line on standard error.
        sources: Folder with the sources.

    Raises:
        BuildError: It can't be built, or what was built can't be used.
    """
    recipe = make_recipe(sources)
    progress = progress or Progress()
    try:
        return _find(recipe) or _build(recipe, progress)
    except OSError as error:
        raise BuildError(
            f"the virtual devices could not be built: {_describe(error)}\n"
            "  do       make room, or set XDG_CACHE_HOME to a folder elsewhere"
        ) from error
    finally:
        progress.end()


def find_builds(sources: Path = SOURCES) -> tuple[Path | None, list[Path]]:
    """Return the library for this process's torch, if it is built, and all other builds, the last used first.

    Raises:
        BuildError: Another user could have changed it.
    """
    recipe = make_recipe(sources)
    builds = [build for folder in _places() for build in cache.list_builds(folder)]
    return _find(recipe), [build for build in builds if build.name != recipe.name]


def _places() -> Iterator[Path]:
    """Yield the folders that may have builds: the user's folder, which may be read-only, and the one to build in."""
    own = cache.cached_builds()
    if own is not None:
        yield own
    writable = cache.open_builds()
    if writable != own:
        yield writable


def _find(recipe: Recipe) -> Path | None:
    for folder in _places():
        library = folder / recipe.name / cache.LIBRARY
        if _is_usable(library):
            cache.note_use(library.parent)
            return library
    return None


def _build(recipe: Recipe, progress: Progress) -> Path:
    folder = cache.open_builds()
    library = folder / recipe.name / cache.LIBRARY
    with cache.only_builder(folder, recipe.name, progress):
        if not _is_usable(library):  # if it is usable, another process has built it meanwhile
            elapsed_s = _compile_into(folder, recipe, progress)
            progress.end(f"the virtual devices are built ({elapsed_s:.0f} s) and kept in {library.parent}")
            problem = _load_problem(library)
            if problem:
                raise BuildError(
                    f"the virtual devices were built, but this torch can't load them: {problem}\n"
                    f"  do       build with the compiler torch was built with (CXX), and report this; see {library}"
                )
            cache.remove_old(folder)
    return library


def _compile_into(folder: Path, recipe: Recipe, progress: Progress) -> float:
    check_headers()
    compiler = find_compiler()
    with cache.unfinished_build(folder) as unfinished:
        log = unfinished / cache.LOG
        try:
            elapsed_s = compile_library(recipe, compiler, unfinished / cache.LIBRARY, log, progress)
        except BuildError as error:
            raise _with_log(error, log, folder / f"{recipe.name}.failed.log") from None
        os.chmod(unfinished / cache.LIBRARY, 0o700)
        cache.put_in_place(unfinished, folder / recipe.name)
    return elapsed_s


def _with_log(error: BuildError, log: Path, kept: Path) -> BuildError:
    with contextlib.suppress(OSError):  # no space left: the raised error says so
        shutil.copyfile(log, kept)
    complete = BuildError(f"{error}\n  log      {kept}")
    complete.log = str(kept)
    return complete


def _is_usable(library: Path) -> bool:
    if not library.is_file():
        return False
    cache.check_trust(library)
    return not _load_problem(library)


def _load_problem(library: Path) -> str:
    """Load a library; return why that fails, or ""."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ""


def _describe(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    problem = "no space left on the device" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return f"{problem}{place}"

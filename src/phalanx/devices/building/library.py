"""Find the library of virtual devices, or build it: the first process does, others wait for it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.devices.building import cache
from phalanx.devices.building.progress import Progress
from phalanx.devices.building.recipe import SOURCES, Recipe, check_headers, make_recipe
from phalanx.errors import BuildError


@dataclass(frozen=True)
class State:
    """What there is of virtual devices on this machine.

    Attributes:
        library: The library for the torch of this process; None when it is yet to be built.
        others: Builds for other versions, the last used first.
    """

    library: Path | None
    others: tuple[Path, ...]


def built_library(progress: Progress | None = None, sources: Path = SOURCES) -> Path:
    """Return the library for the torch of this process, which it can load; build it if need be.

    Args:
        progress: Where to say what is going on; a line on standard error when not given.
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
            f"the virtual devices could not be built: {_in_words(error)}\n"
            "  do       make room, or set XDG_CACHE_HOME to a folder elsewhere"
        ) from error
    finally:
        progress.end()


def look_around(sources: Path = SOURCES) -> State:
    """Return what is built, without building.

    Raises:
        BuildError: Somebody else can have changed it.
    """
    recipe = make_recipe(sources)
    builds = [build for folder in _places() for build in cache.list_builds(folder)]
    return State(_find(recipe), tuple(build for build in builds if build.name != recipe.name))


def _places() -> Iterator[Path]:
    """Go through where builds may lie: the user's folder, though it may be read-only, and the one to build in."""
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
        if not _is_usable(library):  # else another process has built it meanwhile
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
    # Not needed when the library is there, which is nearly always.
    from phalanx.devices.building.compiler import find_compiler
    from phalanx.devices.building.compiling import compile_library, keep_log

    check_headers()
    compiler = find_compiler()
    with cache.unfinished_build(folder) as unfinished:
        log = unfinished / cache.LOG
        try:
            elapsed_s = compile_library(recipe, compiler, unfinished / cache.LIBRARY, log, progress)
        except BuildError as error:
            raise _with_log(error, keep_log(log, folder, recipe.name)) from None
        os.chmod(unfinished / cache.LIBRARY, 0o700)
        cache.put_in_place(unfinished, folder / recipe.name)
    return elapsed_s


def _with_log(error: BuildError, log: Path) -> BuildError:
    told = BuildError(f"{error}\n  log      {log}")
    told.log = str(log)
    return told


def _is_usable(library: Path) -> bool:
    if not library.is_file():
        return False
    cache.check_trust(library)
    return not _load_problem(library)


def _load_problem(library: Path) -> str:
    """Load a library and return why it can't be."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ""


def _in_words(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    told = "no space left on the device" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return f"{told}{place}"

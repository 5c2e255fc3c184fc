"""The folder of finished builds.

Programs load these libraries, so no other user may be able to write to the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from phalanx.errors import BuildError
from phalanx.launch import private_folders
from phalanx.virtual_gpus.building.progress import Progress

LIBRARY = "libphalanx_devices.so"
LOG = "compiler.log"
WAIT_TIMEOUT_S = 900.0
_KIND = "devices"
_KEPT = 6
_UNFINISHED = ".building-"
_FORGOTTEN_S = 24 * 3600.0
_BETWEEN_LOOKS_S = 0.05
_QUIET_S = 0.5


def cached_builds() -> Path | None:
    """Return the user's folder of builds; None if it can't be determined."""
    return private_folders.cached(_KIND)


def open_builds() -> Path:
    """Return a private folder that builds can be written to.

    Raises:
        BuildError: There is none.
    """
    try:
        return private_folders.open_private(_KIND)
    except private_folders.NoFolderError as problem:
        raise BuildError(
            f"virtual devices can't be built: there is no folder to keep them in ({problem})\n"
            "  do       set XDG_CACHE_HOME to a folder that can be written to"
        ) from None


def check_trust(library: Path) -> None:
    """Make sure that no other user can have changed a library.

    Raises:
        BuildError: Another user could.
    """
    builds = library.parent.parent
    problems = [
        private_folders.why_not_private(builds),
        *map(private_folders.why_not_trusted, (library.parent, library)),
    ]
    for problem in problems:
        if problem:
            raise BuildError(
                f"the built virtual devices are not loaded: {problem}\n"
                f"  do       find out who put it there, then remove {library.parent} or forbid others to write"
            )


@contextlib.contextmanager
def only_builder(folder: Path, name: str, progress: Progress, timeout_s: float = WAIT_TIMEOUT_S) -> Iterator[None]:
    """Lock this build for this process; if another process builds it, wait until that one has finished.

    Raises:
        BuildError: It did not finish in time.
    """
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    started = time.monotonic()
    try:
        while not _try_to_lock(descriptor):
            waited_s = time.monotonic() - started
            builder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            if waited_s > timeout_s:
                raise BuildError(
                    f"process {builder} has been building the virtual devices for {waited_s:.0f} s\n"
                    f"  do       see what holds it up, or end it; the lock is {folder / f'{name}.lock'}"
                )
            if waited_s > _QUIET_S:
                progress.show(f"waiting for process {builder}, which builds the virtual devices", waited_s)
            time.sleep(_BETWEEN_LOOKS_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        progress.end()
        yield
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks: two processes may build, and the later library stays
    return True


@contextlib.contextmanager
def unfinished_build(folder: Path) -> Iterator[Path]:
    """Yield a folder to build in, and remove it at the end if it is still there."""
    path = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def put_in_place(unfinished: Path, build: Path) -> None:
    """Move a finished folder to the place of the build in one step, and remove an older one."""
    with contextlib.suppress(OSError):  # there is none, or another process has removed it
        os.replace(build, unfinished.with_name(f"{unfinished.name}-old"))
    os.rename(unfinished, build)
    shutil.rmtree(unfinished.with_name(f"{unfinished.name}-old"), ignore_errors=True)


def note_use(build: Path) -> None:
    """Note that a build is in use, so that it is not removed as an old one."""
    with contextlib.suppress(OSError):  # the folder belongs to another user, who has prepared it
        os.utime(build)


def list_builds(folder: Path) -> list[Path]:
    """Return all builds, the most recently used first."""
    return sorted((path.parent for path in folder.glob(f"[!.]*/{LIBRARY}")), key=_age_s)


def remove_old(folder: Path) -> None:
    """Remove the least recently used builds, and the folders of builds that were killed."""
    abandoned = [path for path in folder.glob(f"{_UNFINISHED}*") if _age_s(path) > _FORGOTTEN_S]
    for path in [*list_builds(folder)[_KEPT:], *abandoned]:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # another process has removed it
        return float("inf")

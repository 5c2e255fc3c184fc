"""The folder that builds are kept in: whose it is, who may build now, and what may go.

What lies there is loaded into the user's process, so nobody else may be able to write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from phalanx.devices.building.progress import Progress
from phalanx.errors import BuildError
from phalanx.settings import cache_folder

LIBRARY = "libphalanx_devices.so"
LOG = "compiler.log"
WAIT_TIMEOUT_S = 900.0
_KEPT = 6
_UNFINISHED = ".building-"
_FORGOTTEN_S = 24 * 3600.0
_BETWEEN_LOOKS_S = 0.05
_QUIET_S = 0.5


def cached_builds() -> Path | None:
    """Return the user's folder of builds; None when it can't be known."""
    try:
        return cache_folder() / "devices"
    except RuntimeError:  # the user has no home
        return None


def spare_builds() -> Path:
    """Return the folder that serves when the user's can't be written to."""
    return Path(tempfile.gettempdir()) / f"phalanx-{os.geteuid()}" / "devices"


def open_builds() -> Path:
    """Return a folder builds can be written to, ours alone.

    Raises:
        BuildError: There is none.
    """
    folder, spare = cached_builds(), spare_builds()
    problem = "the user has no home folder" if folder is None else _make_private(folder)
    if folder is not None and not problem:
        return folder
    # Everybody may make things in the folder for temporary files: each part of the path must be ours.
    problem_there = _make_private(spare.parent) or _link_or_foreign(spare.parent) or _make_private(spare)
    if problem_there:
        raise BuildError(
            f"virtual devices can't be built: there is no folder to keep them in ({problem}; {problem_there})\n"
            "  do       set XDG_CACHE_HOME to a folder that can be written to"
        )
    return spare


def _make_private(folder: Path) -> str:
    """Make a folder, or see that it can be written to; return what is wrong."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} can't be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} can't be written to"


def _link_or_foreign(folder: Path) -> str:
    return f"{folder} is a link" if folder.is_symlink() else _whose(folder)


def _whose(path: Path) -> str:
    """Return why a file or folder can't be trusted; nothing when it can.

    What belongs to the superuser can: it is how an image is prepared for others.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written to by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def check_trust(library: Path) -> None:
    """Make sure that nobody else can have changed a library.

    Raises:
        BuildError: Somebody could.
    """
    for path in (library.parent.parent, library.parent, library):
        problem = _whose(path)
        if problem:
            raise BuildError(
                f"the built virtual devices are not loaded: {problem}\n"
                f"  do       look who put it there, then remove {library.parent} or take away others' right to write"
            )


@contextlib.contextmanager
def only_builder(folder: Path, name: str, progress: Progress, timeout_s: float = WAIT_TIMEOUT_S) -> Iterator[None]:
    """Be the only process that builds this; wait for another one to finish.

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
        return True  # a file system without locks: two may build, and the last one's library stays
    return True


@contextlib.contextmanager
def unfinished_build(folder: Path) -> Iterator[Path]:
    """Give a folder to build in; what is still in it at the end goes."""
    path = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def put_in_place(unfinished: Path, build: Path) -> None:
    """Make a finished folder the build, at once; one that is there goes."""
    with contextlib.suppress(OSError):  # there is none, or it is another process's by now
        os.replace(build, unfinished.with_name(f"{unfinished.name}-old"))
    os.rename(unfinished, build)
    shutil.rmtree(unfinished.with_name(f"{unfinished.name}-old"), ignore_errors=True)


def note_use(build: Path) -> None:
    """Remember that a build is in use, for whoever removes old ones."""
    with contextlib.suppress(OSError):  # a folder that others have prepared
        os.utime(build)


def list_builds(folder: Path) -> list[Path]:
    """Return the builds there are, the last used first."""
    return sorted((path.parent for path in folder.glob(f"[!.]*/{LIBRARY}")), key=_age_s)


def remove_old(folder: Path) -> None:
    """Remove the builds that were used least lately, and what builders have left that were killed."""
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

"""Private cache folders. Their files are loaded into the user's process, so no other user may write to them."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from phalanx.launch.user_identity import is_group_of_one, is_number_certain
from phalanx.settings import cache_folder

_RECORDS = "records"


class NoFolderError(OSError):
    """There is no private folder that can be written to."""


def cached(kind: str) -> Path | None:
    """Return the user's cache folder for one kind of files, with links resolved; None if it can't be determined."""
    try:
        return (cache_folder() / kind).resolve()
    except RuntimeError:  # the user has no home
        return None


def spare(kind: str) -> Path:
    """Return the folder to use if the user's folder can't be written to."""
    return Path(tempfile.gettempdir()).resolve() / f"phalanx-{os.geteuid()}" / kind


def open_records(chosen: Path | None) -> Path:
    """Return the folder for flight records: the chosen one, the usual one, or a private one if that can't be made.

    Raises:
        NoFolderError: There is none.
    """
    folder = chosen or cached(_RECORDS)
    if chosen is None and (folder is None or _make_private(folder)):
        return open_private(_RECORDS)
    assert folder is not None
    return folder


def open_private(kind: str) -> Path:
    """Return a private folder for one kind of files that can be written to; make it if it does not exist.

    Raises:
        NoFolderError: There is none.
    """
    folder, other = cached(kind), spare(kind)
    problem = "the user has no home folder" if folder is None else _make_private(folder) or why_not_private(folder)
    if folder is not None and not problem:
        return folder
    # All users may write to the folder for temporary files, so each part of the path below it must be ours.
    problem_there = _make_private(other.parent) or _link_or_foreign(other.parent) or _make_private(other)
    problem_there = problem_there or why_not_private(other)
    if problem_there:
        raise NoFolderError(f"{problem}; {problem_there}")
    return other


def why_not_private(folder: Path) -> str:
    """Return why a folder can't be trusted, now or later; empty if it can. Its path has no links."""
    return why_not_trusted(folder) or next(filter(None, map(_why_replaceable, folder.parents)), "")


def why_not_trusted(path: Path) -> str:
    """Return why a file or folder can't be trusted; empty if it can.

    Files of the superuser are trusted, because container images are prepared that way.
    """
    status = path.stat()
    if not is_number_certain():
        return f"the owner of {path} is unknown: this user has no number of its own in this container"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if _can_others_write(status):
        return f"{path} can be written to by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _why_replaceable(folder: Path) -> str:
    """Return why another user could replace the contents of a folder; empty if none can.

    In a container, the superuser of the machine may have no number. The owner of the root folder is trusted instead.
    """
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0, Path("/").stat().st_uid):
        return f"{folder} belongs to another user (uid {status.st_uid})"
    if _can_others_write(status) and not status.st_mode & stat.S_ISVTX:
        return f"{folder} can be written to by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _can_others_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not is_group_of_one(status.st_gid)


def _make_private(folder: Path) -> str:
    """Make a folder and its missing parents, and check that it can be written to; return what is wrong."""
    try:
        for each in [*reversed(folder.parents), folder]:
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(exist_ok=True)  # fails if something else is in its place
    except OSError as error:
        return f"{folder} can't be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} can't be written to"


def _link_or_foreign(folder: Path) -> str:
    return f"{folder} is a link" if folder.is_symlink() else why_not_trusted(folder)

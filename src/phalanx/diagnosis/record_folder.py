"""The folder of flight records: each record is written completely or not at all, and only the newest are kept.

What the ranks of a failed job have printed, and the terminal did not show, is in a folder beside the job's record.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from phalanx.diagnosis.observation import Observation, to_json
from phalanx.errors import PhalanxError

_RECORD = re.compile(r".+-\d{8}-\d{6}\.\d{3}-\d+\.json")
_OUTPUT = re.compile(r".+-\d{8}-\d{6}\.\d{3}-\d+\.output")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60


def write_record(seen: Observation, folder: Path, *, keep: int = 20) -> Path:
    """Write an observation as a flight record, named after the job, the time and its process.

    Args:
        seen: What to write.
        folder: The folder; it is made if necessary, with access for this user only.
        keep: How many of the newest records to keep.

    Raises:
        PhalanxError: It can't be written.
    """
    path = folder / f"{_name_of(seen)}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole({path: to_json(seen).encode()})
        for old in _older(folder, _RECORD, keep):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise PhalanxError(
            f"the flight record can't be written to {folder}: {error.strerror or error}\n"
            f"  do       {_advice(folder)} with PHALANX_RECORD_DIR"
        ) from None
    return path


def _advice(folder: Path) -> str:
    for part in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            if part.is_file():
                return f"{part} is a file; name another folder"
    return "make room there, or name another folder"


def make_output_folder(seen: Observation, folder: Path, *, keep: int = 20) -> Path:
    """Make the folder for the output of a failed job's ranks, which only this user can read.

    Args:
        seen: What was seen when the job failed; the folder is named after it, like the job's record.
        folder: The folder of flight records.
        keep: How many of the newest such folders to keep.

    Raises:
        OSError: It can't be made.
    """
    path = folder / f"{_name_of(seen)}.output"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700)
    for old in _older(folder, _OUTPUT, keep):
        shutil.rmtree(old, ignore_errors=True)  # another job may remove it at the same time
    return path


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write these files, with access for this user only: all of them completely, or none.

    Raises:
        OSError: They can't be written.
    """
    # Use new names that nobody can guess, because others may be able to write to the folder.
    parts = {path.with_name(f".{path.name}.{secrets.token_hex(8)}.part"): path for path in files}
    try:
        for part, path in parts.items():
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(files[path])
        for part, path in parts.items():
            part.replace(path)
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink()


def _name_of(seen: Observation) -> str:
    moment = time.localtime(seen.unix_s)
    date = f"{time.strftime('%Y%m%d-%H%M%S', moment)}.{int(seen.unix_s * 1000) % 1000:03}"
    name = _UNSAFE.sub("-", seen.job.name or _program_of(seen))[:_LONGEST_NAME].strip(".-")
    return f"{name or 'job'}-{date}-{seen.job.pid or os.getpid()}"


def _program_of(seen: Observation) -> str:
    command = seen.job.command or (seen.processes[0].command if seen.processes else [])
    scripts = [word for word in command if word.endswith(".py")]
    return Path([*scripts, *command, "job"][0]).stem


def _older(folder: Path, names: re.Pattern[str], keep: int) -> list[Path]:
    """Return what has such a name, except for the newest."""
    found = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another job removes it at the same time
            if names.fullmatch(entry.name) and not entry.is_symlink():
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    return [folder / name for _, name in sorted(found, reverse=True)[keep:]]

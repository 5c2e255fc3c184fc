"""The folder of flight records: each record is written completely or not at all, and only the newest are kept."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from phalanx.diagnosis.observation import Observation, to_json
from phalanx.errors import PhalanxError

_OURS = re.compile(r".+-\d{8}-\d{6}\.\d{3}-\d+\.json")
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
    path = folder / _name_of(seen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole({path: to_json(seen).encode()})
        _forget_old(folder, keep)
    except OSError as error:
        raise PhalanxError(
            f"the flight record can't be written to {folder}: {error.strerror or error}\n"
            "  do       make room there, or name another folder with PHALANX_RECORD_DIR"
        ) from None
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
    return f"{name or 'job'}-{date}-{seen.job.pid or os.getpid()}.json"


def _program_of(seen: Observation) -> str:
    command = seen.job.command or (seen.processes[0].command if seen.processes else [])
    scripts = [word for word in command if word.endswith(".py")]
    return Path([*scripts, *command, "job"][0]).stem


def _forget_old(folder: Path, keep: int) -> None:
    records = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another job removes it at the same time
            if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                records.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    for _, name in sorted(records, reverse=True)[keep:]:
        (folder / name).unlink(missing_ok=True)

"""A random number that only this user's processes know, for names that could otherwise be guessed.

Any user can take the name of an abstract Unix socket. Where ranks have nothing in common but what others know too, such
as a port, another user could be there first. The number lies in the user's home, made when it is first needed. It is
looked for by the user's entry in the password file, not by variables: all ranks must find the same one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import stat
from pathlib import Path

_LENGTH = 32


def make_private(name: str) -> str:
    """Make a name that others can't guess; it stays as it is where the user has no home to keep a secret in."""
    secret = _read(_place())
    if not secret:
        with contextlib.suppress(OSError):
            _create(_place())
        secret = _read(_place())
    return f"{name}|{secret}" if secret else name


def _place() -> Path:
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a user without a name, as in some containers
        home = "/nonexistent"
    return Path(home) / ".cache" / "phalanx" / "secret"


def _read(place: Path) -> str:
    """Return what is there, if it is this user's alone."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        text = os.read(descriptor, 2 * _LENGTH) if is_ours else b""
    finally:
        os.close(descriptor)
    return text.decode() if len(text) == 2 * _LENGTH and text.isalnum() else ""


def _create(place: Path) -> None:
    """Write a new secret in one step; the first process to do so wins."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = place.with_name(f".secret.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(_LENGTH).encode())
        os.fchmod(descriptor, 0o600)
        with contextlib.suppress(FileExistsError):
            os.link(part, place)
    finally:
        os.close(descriptor)
        part.unlink()

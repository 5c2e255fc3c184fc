"""A random number that only this user's processes know, for names that could otherwise be guessed.

Any user can take the name of an abstract Unix socket. If ranks meet by a name that other users know too, such as a port
number, another user could take that name first. The secret is a file in the user's home, made when it is first needed.
The home comes from the password file, not from variables, because all ranks must find the same secret.
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
    """Add the secret to a name, so that others can't guess it; return the name unchanged if there is no home folder."""
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
    """Return the secret, if only this user can read the file."""
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

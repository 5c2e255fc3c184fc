"""Advice for errors that say that the machine lacks memory, files, processes or other resources."""

from __future__ import annotations

import errno
import os
import resource

from phalanx.errors import InternalError

_ENOUGH_FILES = 4096
_LITTLE_ADDRESS_SPACE_BYTES = 32 << 30  # torch with CUDA maps far more than it uses
_MORE_MEMORY = "Free memory, or raise its limit (docker: --memory)."
MORE_ADDRESS_SPACE = "Lift the limit of the address space with `ulimit -v unlimited`."


def advice_about(error: BaseException) -> str:
    """Return what to do about the error whatever was tried, or ""."""
    # The engine and torch raise other classes than OSError for what the kernel has said, but quote it.
    said = str(error).lower()
    more_memory = MORE_ADDRESS_SPACE if has_small_address_space() else _MORE_MEMORY
    if isinstance(error, MemoryError) or "failed to map segment" in said:  # so says the dynamic linker
        return more_memory
    own = error.errno if isinstance(error, OSError) else None
    for number, advice in (
        (errno.EMFILE, more_open_files()),
        (errno.ENFILE, "Raise fs.file-max with sysctl: the whole machine has too many files open."),
        (errno.EAGAIN, "Raise the limit of processes (`ulimit -u`; docker: --pids-limit)."),
        (errno.ENOMEM, more_memory),
        (errno.ENOSPC, more_memory),
    ):
        if number == own or os.strerror(number).lower() in said:
            return advice
    if isinstance(error, InternalError):
        return "See what keeps processes from starting; if that does not help, report it with `phalanx doctor --json`."
    return ""


def in_words(error: OSError, what: str) -> OSError:
    """Return an error of the same kind that says what could not be done, why, and what to do about it."""
    if "\n  do " in str(error):  # whoever was nearer to it has said so
        return error
    message = f"{what}: {error.strerror or error}"
    advice = advice_about(error)
    return type(error)(error.errno, f"{message}\n  do       {advice}" if advice else message)


def has_small_address_space() -> bool:
    """Tell whether this process may map little: torch and groups map more than they use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return soft != resource.RLIM_INFINITY and soft < _LITTLE_ADDRESS_SPACE_BYTES


def more_open_files() -> str:
    """Return how to get more open files: whether the user can do it depends on the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES:
        return f"Raise the limit of open files with `ulimit -n {_ENOUGH_FILES}`."
    return f"Have the limit of open files raised: only root can go above {hard} (docker: --ulimit nofile=4096)."

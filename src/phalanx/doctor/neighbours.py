"""Processes that a probe forks to see what one process may do to another."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

from phalanx.launch.waiting import is_readable

_ANSWER_S = 2.0
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def neighbour() -> Iterator[int]:
    """Fork a process that has the same memory and files as this one and does nothing. It ends with the block."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ask_sibling(question: Callable[[], int]) -> int:
    """Fork a process that asks, and return its answer, from 0 to 255.

    Raises:
        TimeoutError: It did not answer.
        ChildProcessError: It died.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            code = question()
        finally:
            os.write(writer, bytes([code]))
            os._exit(0)
    os.close(writer)
    try:
        if not is_readable(reader, _ANSWER_S):
            raise TimeoutError(f"no answer within {_ANSWER_S:g} s")
        answer = os.read(reader, 1)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if not answer:
        raise ChildProcessError(f"the call killed its process (wait status {status})")
    return answer[0]


def system_call(number: int, *arguments: object) -> int:
    """Make a system call that Python has no function for.

    Raises:
        OSError: It failed.
    """
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def errno_of(call: Callable[[], object]) -> int:
    """Make a call and return 0, or the number of its error."""
    try:
        call()
    except OSError as error:
        return error.errno or 255
    return 0

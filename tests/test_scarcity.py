"""Errors that say what is scarce lead to advice about just that."""

from __future__ import annotations

import errno
import os

import pytest

from phalanx.errors import SharedMemoryError
from phalanx.scarcity import advice_about


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/dev/null"), "limit of open files"),
        (RuntimeError("memfd_create: Too many open files"), "limit of open files"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "limit of processes"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Free memory"),
        (SharedMemoryError('not enough shared memory for group "world"'), "Free memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "Free memory"),
    ],
)
def test_advice_fits_what_is_scarce(error: BaseException, advice: str) -> None:
    assert advice in advice_about(error)


def test_other_errors_lead_to_no_advice() -> None:
    assert advice_about(LookupError("no such thing")) == ""

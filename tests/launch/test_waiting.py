"""Waiting for descriptors of any number."""

from __future__ import annotations

import fcntl
import os
import resource

import pytest

import phalanx
from phalanx.launch.waiting import is_readable


def test_a_descriptor_that_can_be_read_is_noticed() -> None:
    reader, writer = os.pipe()
    assert not is_readable(reader, 0)
    os.write(writer, b"x")
    assert is_readable(reader, 10)
    os.read(reader, 1)
    os.close(writer)
    assert is_readable(reader, None), "its end counts too"
    os.close(reader)


def test_the_number_of_a_descriptor_may_be_above_1023() -> None:
    def program() -> int:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        held = [fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)]
        while held[-1] < 1100:
            held.append(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, held[-1]))
        group = phalanx.connect(timeout_s=20)
        return phalanx.connect(timeout_s=20).size + (group.split([0, 1]) is not None)

    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200:
        pytest.skip("this user may not open so many files")
    assert phalanx.spawn(program, ranks=2, timeout_s=60) == [3, 3]

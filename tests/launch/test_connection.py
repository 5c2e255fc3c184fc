from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

import pytest

from phalanx.launch.connection import Connection, connected_pair


@contextlib.contextmanager
def _pair() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = connected_pair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        yield ours, theirs


@contextlib.contextmanager
def _memory(*texts: bytes) -> Iterator[list[int]]:
    """Files with these texts."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for text in texts:
            descriptors.append(os.memfd_create("a test"))
            stack.callback(os.close, descriptors[-1])
            os.write(descriptors[-1], text)
        yield descriptors


def _take(descriptor: int) -> bytes:
    text = os.pread(descriptor, 100, 0)
    os.close(descriptor)
    return text


def test_messages_keep_their_order_and_each_has_its_own_descriptors() -> None:
    with _pair() as (ours, theirs), _memory(b"first", b"second", b"third") as (first, second, third):
        ours.send("none")
        ours.send("one", [first])
        ours.send("two", [second, third])
        ours.send("none again")
        received = [theirs.receive() for _ in range(4)]
        found = [(message, [_take(each) for each in own]) for message, own in (each for each in received if each)]
    assert found == [("none", []), ("one", [b"first"]), ("two", [b"second", b"third"]), ("none again", [])]


def test_more_descriptors_than_the_kernel_takes_at_once_arrive() -> None:
    with _pair() as (ours, theirs), _memory(b"shared") as (memory,):
        ours.send("many", [memory] * 450)
        received = theirs.receive()
        assert received is not None
        assert [_take(each) for each in received[1]] == [b"shared"] * 450


def test_a_message_that_is_not_complete_is_not_waited_for() -> None:
    with _pair() as (ours, theirs):
        assert theirs.receive_nowait() is None
        ours.send("whole")
        whole = theirs.stream.recv(100)
        ours.stream.send(whole[:20])
        assert theirs.receive_nowait() is None
        ours.stream.send(whole[20:])
        assert theirs.receive_nowait() == ("whole", [])


def test_the_end_of_a_connection_is_seen() -> None:
    with _pair() as (ours, theirs):
        ours.send("last")
        ours.close()
        assert theirs.receive() == ("last", [])
        assert theirs.receive() is None
        with pytest.raises(EOFError):
            theirs.receive_nowait()


def test_what_can_not_be_opened_is_told_and_the_next_message_comes() -> None:
    with _pair() as (ours, theirs), _memory(b"one") as (memory,):
        ours.send("no room", [memory])
        ours.send("next")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(memory)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError) as caught:
                theirs.receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.errno == errno.EMFILE
        assert theirs.receive() == ("next", [])

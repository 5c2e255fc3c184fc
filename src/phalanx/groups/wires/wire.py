"""The protocol of a wire, which native/python/python_wire.cpp calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch

# Whether it is sent, the other rank, the tag, the address of the memory, its size in bytes.
WireMessage: TypeAlias = tuple[bool, int, int, int, int]


class Wire(Protocol):
    """Messages between the ranks of one group, which are on different hosts. Threads may share it.

    Messages between two ranks with one tag arrive in the order in which they were started. A receive may be larger than
    its message, never smaller. What a method raises means that the connection is lost.
    """

    def start(self, messages: Sequence[WireMessage]) -> list[int]:
        """Start messages and return their handles at once."""

    def wait(self, handles: Sequence[int], limit_s: float) -> None:
        """Wait for messages in turn, each once. A wait that takes longer than the limit breaks the wire."""

    def has_come(self, handle: int) -> bool:
        """Tell whether a received message was complete when the wire broke."""

    def cut(self) -> None:
        """Break the wire, so that waits in other threads end."""

    def close(self) -> None:
        """Leave in good order: peers still get what was sent to them."""


def bytes_at(address: int, size: int) -> torch.Tensor:
    """Return memory as a tensor of bytes, which does not keep it alive."""
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)

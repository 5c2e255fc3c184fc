"""A wire that uses Gloo through torch's process group objects. It registers nothing with torch.distributed.

Gloo's own ranks are the group's. It is asked for messages only, never for a collective.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from phalanx.groups.wires.wire import WireMessage, bytes_at
from phalanx.launch.board import Board

dist: Any = torch.distributed  # torch's types lack what is used here
_c10d: Any = torch._C._distributed_c10d
_Gloo: Any = _c10d.ProcessGroupGloo  # torch.distributed may have phalanx's stand-in under this name
_FOREVER = timedelta(days=20)  # Gloo counts milliseconds in 32 bits somewhere; each wait has a limit of its own
_MOMENT = timedelta(milliseconds=1)
_NO_TAG = 2**31 - 1  # nobody sends with this one
_MOST_VIEWS = 256
_DONE: tuple[Any, Any] = (None, None)  # in the place of a message that has ended


class GlooWire:
    """Messages of one rank. See phalanx.groups.wires.wire.Wire.

    Args:
        board: What the ranks of the group share; Gloo's addresses are exchanged there.
        rank: The number of this rank.
        size: The number of ranks.
        address: At which address of this host the others reach it.
        timeout_s: How long to wait for the other ranks.
    """

    def __init__(self, board: Board, rank: int, size: int, address: str, timeout_s: float) -> None:
        options = _Gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [_new_device(address)]
        store = _BoardStore(board, timeout_s)
        # Connections are made when they are first used: most pairs of ranks never talk to each other.
        self._group: Any = _Gloo(store, rank, size, options)
        store.fetch([f"0/{number}" for number in range(size)])
        self._store = store  # torch does not keep a store of Python alive
        self._group.set_timeout(_FOREVER)
        self._numbers = itertools.count(1)
        self._under_way: dict[int, tuple[Any, Any]] = {}  # the work, and the memory that it uses
        self._views: dict[tuple[int, int], torch.Tensor] = {}
        self._lock = threading.Lock()  # guards _under_way, _views
        self._peers = set[int]()  # those that this rank is connected to, or was

    def start(self, messages: Sequence[WireMessage]) -> list[int]:
        """Start messages and return their handles.

        Raises:
            ConnectionError: The connection is lost.
        """
        handles = []
        for is_send, peer, tag, address, size in messages:
            view = self._view(address, size)
            try:
                work = self._group.send([view], peer, tag) if is_send else self._group.recv([view], peer, tag)
            except (RuntimeError, AttributeError) as error:
                raise _lost(error) from None
            self._peers.add(peer)
            handle = next(self._numbers)
            with self._lock:
                self._under_way[handle] = (work, view)
            handles.append(handle)
        return handles

    def wait(self, handles: Sequence[int], limit_s: float) -> None:
        """Wait for messages in turn.

        Raises:
            ConnectionError: The connection is lost, or the time is up.
        """
        limit = min(timedelta(seconds=limit_s), _FOREVER)
        for handle in handles:
            try:
                self._under_way[handle][0].wait(limit)
            except RuntimeError as error:
                raise _lost(error) from None
            self._under_way[handle] = _DONE
        with self._lock:
            for handle in handles:
                self._under_way.pop(handle, None)

    def has_come(self, handle: int) -> bool:
        """Tell whether a received message was complete when the wire broke."""
        found = self._under_way.get(handle)
        if found is None or found is _DONE:  # done, and then another one that was waited for with it has failed
            return found is not None
        try:
            return bool(found[0].wait(_MOMENT))
        except RuntimeError:
            return False

    def cut(self) -> None:
        """Break all connections: Gloo does so when the time of any wait is up, and offers no other way."""
        group = self._group
        if group is None:
            return
        # A connection that the peer has closed refuses at once, without any effect on the others.
        for peer in sorted(self._peers):
            with contextlib.suppress(RuntimeError):
                group.recv([torch.empty(1, dtype=torch.uint8)], peer, _NO_TAG).wait(_MOMENT)

    def close(self) -> None:
        """Close all connections. What was sent to a receive that stood has gone: Gloo writes it within send()."""
        self.cut()
        with self._lock:
            self._under_way.clear()
        self._group = None

    def _view(self, address: int, size: int) -> torch.Tensor:
        with self._lock:
            view = self._views.get((address, size))
            if view is None:
                if len(self._views) >= _MOST_VIEWS:
                    self._views.clear()
                view = self._views[address, size] = bytes_at(address, size)
            return view


def _new_device(address: str) -> Any:
    """Return Gloo's device for one group.

    Groups that share one, and connect late, mix up their connections (torch 2.13).
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return _Gloo.create_device(interface=interface, lazy_init=True)
    return _Gloo.create_device(hostname=address, lazy_init=True)


def _lost(error: Exception) -> ConnectionError:
    said = str(error).split("] ", 1)[-1].split(". This is typically")[0].splitlines()[0]
    return ConnectionError(said.strip() or type(error).__name__)


class _BoardStore(dist.Store):  # type: ignore[misc]
    """A store of torch on a board, for Gloo. Its C++ code calls these methods by name."""

    def __init__(self, board: Board, timeout_s: float) -> None:
        super().__init__()
        self._board = board
        self._timeout_s = timeout_s
        self._fetched: dict[str, str] = {}
        self.set_timeout(timedelta(seconds=timeout_s))

    def fetch(self, keys: Sequence[str]) -> None:
        """Read the ranks' addresses, so that no operation needs the board when it makes a connection later."""
        self._fetched = dict(zip(keys, self._board.get_many(list(keys), self._timeout_s), strict=True))

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._board.set(key, base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several values."""
        if all(key in self._fetched for key in keys):
            return [base64.b64decode(self._fetched[key]) for key in keys]
        return [base64.b64decode(text) for text in self._board.get_many(list(keys), self._timeout_s)]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys have values."""
        if all(key in self._fetched for key in keys):
            return
        self._board.get_many(list(keys), self._timeout_s if timeout is None else timeout.total_seconds())

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        return self._board.add(key, amount)

    def has_extended_api(self) -> bool:
        """Say that multi_get and multi_set exist."""
        return True

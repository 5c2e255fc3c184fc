"""Agree through torch's store on where the ranks of a group meet."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from pathlib import Path

from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.launch.board import Seal, StoreBoard
from phalanx.launch.context import current_context
from phalanx.launch.hosts.addresses import parse_endpoint
from phalanx.settings import is_on_one_host, job_desk, job_id, job_token, master_address
from phalanx.torch_backend.untyped import Store, dist

_THIS_HOST = ("localhost", "127.0.0.1", "::1")


def agree_on_place(store: Store, rank: int, timeout: timedelta) -> str:
    """Return a name that only the ranks of this store get, the same one on all of them.

    Raises:
        UsageError: Rank 0 is on another host.
        OperationTimeoutError: Rank 0 did not come.
    """
    # A store may serve several groups, one after the other, so every rank counts its calls.
    number = store.add(f"phalanx/rank/{rank}", 1)
    return _share_place(store, f"phalanx/place/{number}", rank == 0, timeout)


def place_of_hosts(store: Store) -> str | None:
    """Return a host to which the ranks of a store have a route; None if all ranks are on this host."""
    context = current_context()
    if context is not None and (context.is_thread or not job_desk()):
        return None
    if context is not None:
        return parse_endpoint(job_desk()).host if is_on_one_host() is False else None
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    own = getattr(store, "host", "")
    is_elsewhere = bool(own) and own not in _THIS_HOST
    told = is_on_one_host()
    if told is not False and not (told is None and is_elsewhere):
        return None
    return str(own) if is_elsewhere else parse_endpoint(master_address()).host


def open_board(store: Store, rank: int) -> StoreBoard:
    """Return a board for one group of all ranks of a store."""
    number = store.add(f"phalanx/board/{rank}", 1)  # a store may serve several groups, one after the other
    return StoreBoard(dist.PrefixStore(f"phalanx/{number}", store), Seal(job_token(), job_id()))


def agree_on_merge_place(store: Store, size: int, timeout: timedelta) -> str:
    """Do the same for `size` ranks of several groups, which have no common rank numbers.

    Raises:
        UsageError: A rank is on another host.
        OperationTimeoutError: No rank has chosen a place in time.
    """
    number, position = divmod(store.add("phalanx/merge", 1) - 1, size)
    return _share_place(store, f"phalanx/merge/{number}", position == 0, timeout)


def _share_place(store: Store, key: str, is_first: bool, timeout: timedelta) -> str:
    if is_first:
        store.set(key, f"{_host()}|{secrets.token_hex(16)}")
    try:
        store.wait([key], timeout)
    except RuntimeError as error:
        raise OperationTimeoutError(
            f"rank 0 did not come to make the group within {timeout.total_seconds():.3g} s\n"
            f"  do       make sure every rank makes this call, or give a longer timeout"
        ) from error
    host, _, place = store.get(key).decode().partition("|")
    if host != _host():
        raise UsageError(
            f"this rank is on another host than rank 0, or in another container\n"
            f"  here     {_host()}\n  rank 0   {host}\n"
            f"  do       use backend 'gloo' or 'nccl' for ranks on several hosts"
        )
    return str(place)


def _host() -> str:
    """Return what ranks must have in common to reach each other: the running system and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"

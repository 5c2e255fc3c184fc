"""A board that all ranks of a job read and write: texts by key, each signed with the job's token.

The values are JSON with an HMAC and never pickles. A value that somebody without the token has written raises
UsageError before anything in it is used. The board does not hide values. A stranger who can reach a store of torch can
also delete a value, or put an older one of the same key in its place.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from phalanx.errors import OperationTimeoutError, UsageError

_NO_TOKEN = "phalanx: no token"  # signatures then find damage and values of other jobs, but no forgery
_PREFIX = "phalanx/board/"


class Board(Protocol):
    """Texts by key, which all ranks of a job see. A key is written once, unless its users agree on something else."""

    def set(self, key: str, text: str) -> None:
        """Write a text, for all to read."""

    def get(self, key: str, timeout_s: float) -> str:
        """Wait until there is a text, and return it.

        Raises:
            OperationTimeoutError: Nobody has written one in time.
            UsageError: The text is not of this job.
        """

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        """Wait until there are texts under all these keys, and return them in this order.

        Raises:
            OperationTimeoutError: One of them was not written in time.
            UsageError: One of them is not of this job.
        """

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, which begins with 0, and return the sum.

        Counters have keys of their own, and no signature.
        """


class Seal:
    """Signs the values of one job.

    Args:
        token: The secret that only the processes of the job know; "" if there is none.
        job_id: The name of the job.
        writer: Who writes with this seal; errors name the writer.
    """

    def __init__(self, token: str, job_id: str, writer: str = "") -> None:
        self._secret = hashlib.sha256((token or _NO_TOKEN).encode()).digest()
        self._job_id = job_id
        self._writer = writer or f"{os.uname().nodename} (pid {os.getpid()})"

    def sign(self, key: str, text: str) -> str:
        """Return the value to store for a text."""
        return json.dumps({"text": text, "by": self._writer, "hmac": self._digest(key, text, self._writer)})

    def open(self, key: str, value: str | bytes) -> str:
        """Return the text of a value.

        Raises:
            UsageError: The value was not written for this key with the token of this job.
        """
        text, writer, digest = _parts_of(value)
        if hmac.compare_digest(digest.encode(), self._digest(key, text, writer).encode()):
            return text
        whose = f"{writer[:100]!r}, as it says itself" if writer else "a program other than phalanx"
        raise UsageError(
            f'the value "{key}" of job "{self._job_id}" was written by {whose}, and its signature is wrong\n'
            "  do       give all hosts the same token (PHALANX_JOB_TOKEN or --token-file), and each job its own "
            "--rdzv-id; if they have these, another program writes to this store"
        )

    def _digest(self, key: str, text: str, writer: str) -> str:
        # As JSON, so that no two lists of parts have the same bytes.
        signed = json.dumps([self._job_id, key, text, writer]).encode()
        return hmac.digest(self._secret, signed, "sha256").hex()


def _parts_of(value: str | bytes) -> tuple[str, str, str]:
    """Return text, writer and signature; empty texts if this is no value of a board."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return "", "", ""
    names = ("text", "by", "hmac")
    text, writer, digest = (found.get(name) for name in names) if isinstance(found, dict) else (None, None, None)
    if not isinstance(text, str) or not isinstance(writer, str) or not isinstance(digest, str):
        return "", "", ""
    return (text, writer, digest) if writer.isprintable() and digest.isascii() else ("", "", "")


class StoreBoard:
    """A board in a store of torch. Its users keep the store alive.

    A wait asks the store again and again, because some stores of torch ignore the limit of a wait if the link to their
    server is cut. Even so, a single question to such a store may never return.

    Args:
        store: Any torch.distributed.Store.
        seal: Signs the values.
    """

    _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05

    def __init__(self, store: Any, seal: Seal) -> None:
        self._store = store
        self._seal = seal

    def set(self, key: str, text: str) -> None:
        """Write a text."""
        self._store.set(_PREFIX + key, self._seal.sign(key, text))

    def get(self, key: str, timeout_s: float) -> str:
        """Wait for a text, and return it.

        Raises:
            OperationTimeoutError: Nobody has written it in time.
            UsageError: The text is not of this job.
        """
        return self.get_many([key], timeout_s)[0]

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        """Wait for texts, and return them.

        Raises:
            OperationTimeoutError: One of them was not written in time.
            UsageError: One of them is not of this job.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = self._FIRST_PAUSE_S
        waiting = list(keys)
        while waiting := [key for key in waiting if not self._store.check([_PREFIX + key])]:
            if time.monotonic() > deadline:
                raise nobody_wrote(waiting, timeout_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._LONGEST_PAUSE_S)
        return [self._seal.open(key, self._store.get(_PREFIX + key)) for key in keys]

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, and return the sum."""
        return int(self._store.add(_PREFIX + key, amount))


def nobody_wrote(keys: Sequence[str], timeout_s: float) -> OperationTimeoutError:
    """Make the error for texts that did not come."""
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return OperationTimeoutError(
        f'nobody has written "{keys[0]}"{more} to the board of the job within {timeout_s:.3g} s\n'
        "  do       make sure every rank makes this call, or give a longer timeout"
    )

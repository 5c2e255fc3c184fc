"""torch's store over the rendezvous server of a job on several hosts.

A TCPStore serves anybody who reaches its port, and waits forever if the link to it is cut. This store does neither: the
server speaks only to processes that have the job's token, and all waits keep to their limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from phalanx.errors import PhalanxError, UsageError
from phalanx.launch.context import current_context
from phalanx.launch.hosts.client import ServerClient
from phalanx.launch.rank_server import rendezvous_server
from phalanx.torch_backend.untyped import dist


class HostsStore(dist.Store):  # type: ignore[misc]
    """The store of one attempt. Threads may share it.

    torch's C++ code calls these methods by their names in C++ or in Python, so some have two.

    Args:
        client: The connection to the server.
        prefix: What the keys begin with there.
    """

    def __init__(self, client: ServerClient, prefix: str) -> None:
        super().__init__()
        self._client = client
        self._prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        self._ask("set", key=self._prefix + key, value=_text_of(value))

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several values."""
        return [_bytes_of(value) for value in self._wait_for(keys, self.timeout)]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        return int(self._ask("add", key=self._prefix + key, amount=amount)["total"])

    def append(self, key: str, value: bytes | str) -> None:
        """Add to the end of a value."""
        self._ask("append", key=self._prefix + key, value=_text_of(value))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write a value if the present one is as expected; return the one that is there then."""
        found = self._ask("compare_set", key=self._prefix + key, expected=_text_of(expected), value=_text_of(desired))
        return _bytes_of(found["value"])

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all these keys have values."""
        return bool(self._ask("check", keys=[self._prefix + key for key in keys])["has_all"])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys have values."""
        self._wait_for(keys, self.timeout if timeout is None else timeout)

    def delete_key(self, key: str) -> bool:
        """Remove a value; tell whether there was one."""
        return bool(self._ask("delete", key=self._prefix + key)["was_there"])

    def num_keys(self) -> int:
        """Return the number of values."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return the keys of all values."""
        return [str(key).removeprefix(self._prefix) for key in self._ask("list", prefix=self._prefix)["keys"]]

    def has_extended_api(self) -> bool:
        """Say that append, multi_get and multi_set exist."""
        return True

    def clone(self) -> HostsStore:
        """Return another store of the same values, with a timeout of its own."""
        other = HostsStore(self._client, self._prefix)
        other.set_timeout(self.timeout)
        return other

    deleteKey = delete_key
    getNumKeys = num_keys

    def _wait_for(self, keys: Sequence[str], timeout: timedelta) -> list[str]:
        limit_s = timeout.total_seconds()
        try:
            found = self._client.get([self._prefix + key for key in keys], limit_s)
        except PhalanxError as error:
            raise dist.DistNetworkError(str(error)) from error
        if found is None:
            raise dist.DistStoreError(f"wait timeout after {limit_s:.3g} s, keys: {', '.join(keys)}")
        return found

    def _ask(self, operation: str, **facts: Any) -> Any:
        try:
            return self._client.request({"op": operation, **facts})
        except PhalanxError as error:
            raise dist.DistNetworkError(str(error)) from error


def open_hosts_store(attempt: str) -> HostsStore:
    """Return the store of an attempt on the rendezvous server of this rank's job.

    Raises:
        UsageError: The job has no rendezvous server.
    """
    client = rendezvous_server()
    if client is None:
        raise UsageError("PHALANX_STORE names the rendezvous server, and PHALANX_RDZV does not say where it is")
    store = HostsStore(client, f"{attempt}/store/")
    context = current_context()
    if context is not None:
        context.own.setdefault("stores", []).append(store)  # C++ code that uses it does not keep the Python object
    return store


def _text_of(value: bytes | str) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _bytes_of(text: str) -> bytes:
    return text.encode("latin-1")

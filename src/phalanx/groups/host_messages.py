"""send and recv between ranks of different hosts.

Each message has a card with its size and dtype in front. A small message travels behind its card; for a larger one the
receiver starts a receive of just its size when it has seen the card. So sides that disagree find out, and nothing is
overrun.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from phalanx.collectives import Timeout, seconds_of
from phalanx.errors import MismatchError, OperationTimeoutError, PhalanxError, UsageError
from phalanx.groups.wires.wire import Wire

_CARD = struct.Struct("<8sQ32s")  # a mark, the size in bytes, the dtype
_MARK = b"pxmail-1"
_SMALL_BYTES = 8192
_FIRST_TAG = 16  # the lower ones are the collectives'
_LARGEST_TAG = (2**31 - 2 - _FIRST_TAG) // 2


class Owner(Protocol):
    """What messages need of their group."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def lost_message(self, operation: str, peer: int, error: Exception, timeout_s: float) -> PhalanxError:
        """Return the exception for a message whose connection was lost."""

    def _watch_wait(self, begins: bool) -> None: ...


class HostMessage:
    """A message under way. Satisfies phalanx.collectives.Work."""

    def __init__(self, what: str, run: Callable[[], None], result: torch.Tensor, source: int | None) -> None:
        self._what = what
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._result = result
        self._source = source
        threading.Thread(target=self._run, args=(run,), daemon=True, name="phalanx message").start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # the caller gets it from wait()
            self._error = error
        self._over.set()

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait until it is done.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        if not self._over.wait(None if timeout_s is None else seconds_of(timeout_s, 0)):
            raise OperationTimeoutError(f"{self._what} is not done in time\n  do       give a longer timeout")
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Tell whether it has ended."""
        return self._over.is_set()

    def exception(self) -> BaseException | None:
        """Return why it failed, or None."""
        return self._error if self._over.is_set() else None

    def result(self) -> torch.Tensor:
        """Wait, and return the tensor."""
        self.wait()
        return self._result

    def source_rank(self) -> int | None:
        """Return who sent it."""
        return self._source if self._over.is_set() and self._error is None else None


class HostMessages:
    """The messages of one rank to and from other hosts."""

    def __init__(self, owner: Owner, wire: Wire) -> None:
        self._owner = owner
        self._wire = wire
        self._lock = threading.Lock()  # guards _last
        self._last: dict[tuple[int, int], threading.Event] = {}  # of each source and tag: set when its data may follow

    def start(self, operation: str, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float, is_async: bool) -> Any:
        """Serve send or recv.

        Raises:
            PhalanxError: The message failed.
        """
        if tag > _LARGEST_TAG:
            raise UsageError(f"{operation}: tag {tag} is too large between hosts; give at most {_LARGEST_TAG}")
        run = (self._send if operation == "send" else self._receive)(tensor, peer, tag, timeout_s)
        if is_async:
            return HostMessage(f"{operation} with rank {peer}", run, tensor, None if operation == "send" else peer)
        run()
        return None if operation == "send" else peer

    def _send(self, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float) -> Callable[[], None]:
        data = tensor.detach().contiguous().view(-1)
        size = data.numel() * data.element_size()
        card = bytearray(_CARD.pack(_MARK, size, str(tensor.dtype).encode()[:32]))
        payload = data.view(torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        if size <= _SMALL_BYTES:
            card += payload.numpy().tobytes()
        frame = torch.frombuffer(card, dtype=torch.uint8)
        messages = [(True, peer, self._tag(tag), frame.data_ptr(), len(card))]
        if size > _SMALL_BYTES:
            messages.append((True, peer, self._tag(tag) + 1, payload.data_ptr(), size))
        handles = self._start("send", messages, peer, timeout_s)

        kept = (frame, payload)  # until they have gone

        def run() -> None:
            self._wait("send", handles, peer, timeout_s)
            assert kept

        return run

    def _receive(self, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float) -> Callable[[], None]:
        frame = torch.empty(_CARD.size + _SMALL_BYTES, dtype=torch.uint8)
        messages = [(False, peer, self._tag(tag), frame.data_ptr(), frame.numel())]
        with self._lock:  # so that cards come in the order of the calls
            handles = self._start("recv", messages, peer, timeout_s)
            before, own = self._last.get((peer, tag)), threading.Event()
            self._last[peer, tag] = own

        def run() -> None:
            try:
                self._wait("recv", handles, peer, timeout_s)
                if before is not None:
                    before.wait()
                size = self._check(frame, tensor, peer)
                data = (
                    tensor
                    if tensor.is_contiguous()
                    else torch.empty_like(tensor, memory_format=torch.contiguous_format)
                )
                flat = data.detach().view(-1).view(torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
                if size <= _SMALL_BYTES:
                    flat.copy_(frame[_CARD.size : _CARD.size + size])
                else:
                    bulk = self._start(
                        "recv", [(False, peer, self._tag(tag) + 1, flat.data_ptr(), size)], peer, timeout_s
                    )
                    own.set()
                    self._wait("recv", bulk, peer, timeout_s)
                if data is not tensor:
                    tensor.detach().copy_(data)
            finally:
                own.set()

        return run

    def _check(self, frame: torch.Tensor, tensor: torch.Tensor, peer: int) -> int:
        mark, size, dtype = _CARD.unpack(frame[: _CARD.size].numpy().tobytes())
        expected = tensor.numel() * tensor.element_size()
        sent = dtype.rstrip(b"\0").decode(errors="replace")
        if mark != _MARK or size != expected or sent != str(tensor.dtype):
            raise MismatchError(
                f'recv of group "{self._owner.name}": the message and the buffer differ (rank {peer})\n'
                f"  here     rank {self._owner.rank} of {self._owner.size} has {tensor.dtype} {tuple(tensor.shape)}\n"
                f"  differs  rank {peer} sent {size} bytes of {sent}\n"
                "  do       receive into a tensor of the sent shape and dtype",
                group=self._owner.name,
                rank=self._owner.rank,
                num_ranks=self._owner.size,
                operation="recv",
                culprits=(peer,),
            )
        return expected

    def _tag(self, tag: int) -> int:
        return _FIRST_TAG + 2 * tag

    def _start(
        self, operation: str, messages: list[tuple[bool, int, int, int, int]], peer: int, timeout_s: float
    ) -> list[int]:
        try:
            return self._wire.start(messages)
        except ConnectionError as error:
            raise self._owner.lost_message(operation, peer, error, timeout_s) from None

    def _wait(self, operation: str, handles: list[int], peer: int, timeout_s: float) -> None:
        self._owner._watch_wait(True)
        try:
            self._wire.wait(handles, timeout_s)
        except ConnectionError as error:
            raise self._owner.lost_message(operation, peer, error, timeout_s) from None
        finally:
            self._owner._watch_wait(False)

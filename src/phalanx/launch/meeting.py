"""A place where processes or threads of one host meet by name and leave with the same piece of shared memory.

The name is an abstract Unix socket: no file, no port, nothing left behind. Whoever comes first is the host. It collects
a card from every guest, puts them in order, makes the memory and hands its descriptor round. Only processes of the same
user are let in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.errors import OperationTimeoutError, PeerError, UsageError

_POLL_S = 0.05
_RETRY_S = 0.001


class Memory(Protocol):
    """What the host makes: anything with a descriptor."""

    @property
    def descriptor(self) -> int:
        """The open file descriptor."""

    def close_descriptor(self) -> None:
        """Close it; mappings stay."""


@dataclass(frozen=True)
class Outcome:
    """What a participant takes home.

    Attributes:
        position: Its place in the order of all.
        cards: Everybody's cards, in that order.
        descriptor: The memory; the caller closes it.
    """

    position: int
    cards: tuple[Any, ...]
    descriptor: int


@dataclass(frozen=True)
class Gathering:
    """The rules of one meeting.

    Attributes:
        name: What all participants agree on.
        is_complete: Whether these cards are everybody.
        order: Puts the cards in order, or raises UsageError, which everybody gets.
        create: Makes the memory for that many participants.
        describe_missing: Says who has not come, for the error.
        timeout_s: How long to wait for everybody.
        check: Raises when it is known that somebody can't come; asked now and then.
        missing: Who has not come, as numbers, if they have any.
    """

    name: str
    is_complete: Callable[[Sequence[Any]], bool]
    order: Callable[[Sequence[Any]], Sequence[Any]]
    create: Callable[[Sequence[Any]], Memory]
    describe_missing: Callable[[Sequence[Any]], str]
    timeout_s: float
    check: Callable[[], None] = lambda: None
    missing: Callable[[Sequence[Any]], Iterable[int]] = lambda cards: ()


def meet(gathering: Gathering, card: Any) -> Outcome:
    """Take part in a meeting with a card that no other participant has.

    Raises:
        OperationTimeoutError: Not everybody came in time.
        PeerError: The host died; or the memory could not be made there.
        UsageError: The participants contradict each other.
    """
    address = address_of(gathering.name)
    deadline = time.monotonic() + gathering.timeout_s
    while True:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server:
            try:
                server.bind(address)
            except OSError:
                pass
            else:
                server.listen(4096)
                return _Host(gathering, server, deadline).run(card)
        outcome = _visit(gathering, address, card, deadline)
        if outcome is not None:
            return outcome
        if time.monotonic() > deadline:
            raise _too_late(gathering, [card])
        time.sleep(_RETRY_S)


def address_of(name: str) -> bytes:
    """Return the socket that belongs to a name; who does not know the name can't guess it."""
    return b"\0phalanx-" + hashlib.sha256(f"{os.geteuid()}:{name}".encode()).hexdigest()[:40].encode()


def _too_late(gathering: Gathering, cards: Sequence[Any]) -> OperationTimeoutError:
    told = gathering.describe_missing(cards)
    culprits = tuple(sorted(gathering.missing(cards)))
    return OperationTimeoutError(
        f"{gathering.name.split('|')[0]}: timed out after {gathering.timeout_s:.3g} s; {told}\n"
        f"  do       make sure every rank makes this call, or give a longer timeout (timeout_s)",
        culprits=culprits,
        verdict="not joined" if culprits else "",
    )


def is_same_user(connection: socket.socket) -> bool:
    """Tell whether the other end of a Unix socket belongs to the user of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


def _visit(gathering: Gathering, address: bytes, card: Any, deadline: float) -> Outcome | None:
    """Be a guest; None when there is no host (any more) and it is worth another try."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(address)
        except OSError:
            return None
        if not is_same_user(connection):
            raise UsageError(
                f"{gathering.name.split('|')[0]}: another user holds this meeting place\n"
                "  do       start the job again; if that does not help, tell the administrator of this machine"
            )
        try:
            connection.send(pickle.dumps(card))
            while not select.select([connection], [], [], _POLL_S)[0]:
                gathering.check()
                if time.monotonic() > deadline + 1:  # the host's own deadline comes first, with better words
                    raise _too_late(gathering, [card])
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        except (ConnectionError, BrokenPipeError):
            return None
        if not message:
            return None
        answer = pickle.loads(message)
        if isinstance(answer, BaseException):
            raise answer
        position, cards = answer
        (descriptor,) = descriptors
        with contextlib.suppress(OSError):
            connection.send(b"attached")
        return Outcome(position, cards, descriptor)


class _Host:
    def __init__(self, gathering: Gathering, server: socket.socket, deadline: float) -> None:
        self._gathering = gathering
        self._server = server
        self._deadline = deadline
        self._guests: dict[socket.socket, Any] = {}

    def run(self, card: Any) -> Outcome:
        try:
            while not self._gathering.is_complete([card, *self._guests.values()]):
                self._admit()
                self._gathering.check()
                if time.monotonic() > self._deadline:
                    raise _too_late(self._gathering, [card, *self._guests.values()])
            return self._hand_round(card)
        except BaseException as error:
            self._tell_failure(error)
            raise
        finally:
            for guest in self._guests:
                guest.close()

    def _admit(self) -> None:
        ready, _, _ = select.select([self._server, *self._guests], [], [], _POLL_S)
        for connection in ready:
            if connection is self._server:
                guest, _ = self._server.accept()
                guest.settimeout(max(self._deadline - time.monotonic(), _POLL_S))
                card = self._read_card(guest)
                if card is not None:
                    self._guests[guest] = card
            elif not connection.recv(64):  # it went away while it waited
                del self._guests[connection]
                connection.close()

    def _read_card(self, guest: socket.socket) -> Any:
        if not is_same_user(guest):
            guest.close()
            return None
        try:
            return pickle.loads(guest.recv(1 << 20))
        except Exception:  # it has gone, or is no rank: whoever else of this user may have come here by mistake
            guest.close()
            return None

    def _hand_round(self, card: Any) -> Outcome:
        cards = tuple(self._gathering.order([card, *self._guests.values()]))
        memory = self._gathering.create(cards)
        for guest, its_card in self._guests.items():
            answer = pickle.dumps((cards.index(its_card), cards))
            try:
                socket.send_fds(guest, [answer], [memory.descriptor])
                guest.recv(64)  # it holds its own descriptor now
            except OSError as error:
                raise PeerError(f"{self._gathering.name.split('|')[0]}: a rank died while it joined") from error
        descriptor = os.dup(memory.descriptor)
        memory.close_descriptor()
        return Outcome(cards.index(card), cards, descriptor)

    def _tell_failure(self, error: BaseException) -> None:
        told = error if isinstance(error, Exception) else PeerError(f"{self._gathering.name}: the host was interrupted")
        for guest in self._guests:
            with contextlib.suppress(OSError):
                guest.send(pickle.dumps(told))

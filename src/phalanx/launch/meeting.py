"""A place where processes or threads of one host meet by name and leave with the same piece of shared memory.

The name is an abstract Unix socket: it needs no file and no port, and leaves nothing behind. The first participant is
the organizer. It collects a card from every guest, puts the cards in order, makes the memory and sends its descriptor
to all guests. The meeting ends when all have attached to the memory. If one of them can't, all detach and raise the
reason. Only processes of the same user are let in.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from phalanx.errors import (
    OperationTimeoutError,
    PeerDiedError,
    PeerError,
    PeerFailedError,
    PhalanxError,
    SharedMemoryError,
    UsageError,
)
from phalanx.launch.connection import receive_with_descriptors
from phalanx.launch.exceptions import headline_of
from phalanx.launch.user_identity import is_number_certain
from phalanx.launch.waiting import is_readable
from phalanx.scarcity import in_words

_POLL_S = 0.05
_RETRY_S = 0.001
_ATTACHED = b"attached"
_NO_HOST = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.EAGAIN, errno.EINTR)

Attached = TypeVar("Attached")


class HasDescriptor(Protocol):
    """What the organizer makes: anything with a descriptor."""

    @property
    def descriptor(self) -> int:
        """The open file descriptor."""

    def close_descriptor(self) -> None:
        """Close it; mappings stay."""


@dataclass(frozen=True)
class MeetingResult:
    """What a participant gets from a meeting.

    Attributes:
        position: Its place in the order of all participants.
        cards: The cards of all participants, in that order.
        descriptor: The descriptor of the memory; the participant closes it after it has attached.
    """

    position: int
    cards: tuple[Any, ...]
    descriptor: int


@dataclass(frozen=True)
class Gathering:
    """The rules of one meeting.

    Attributes:
        name: The name that all participants use.
        is_complete: Tells whether these are the cards of all participants.
        order: Puts the cards in order, or raises UsageError on all participants.
        create: Makes the memory for the participants with these cards.
        describe_missing: Says which participants have not come, for the error.
        timeout_s: How long to wait for all participants.
        check: Raises if a participant is known to be unable to come; called from time to time.
        missing: Returns the ranks that have not come, if participants have rank numbers.
        rank_of: Returns the rank of the participant with a card, if it has a rank number.
    """

    name: str
    is_complete: Callable[[Sequence[Any]], bool]
    order: Callable[[Sequence[Any]], Sequence[Any]]
    create: Callable[[Sequence[Any]], HasDescriptor]
    describe_missing: Callable[[Sequence[Any]], str]
    timeout_s: float
    check: Callable[[], None] = lambda: None
    missing: Callable[[Sequence[Any]], Iterable[int]] = lambda cards: ()
    rank_of: Callable[[Any], int | None] = lambda card: None

    @property
    def title(self) -> str:
        """The part of the name that errors show."""
        return self.name.split("|")[0]


def meet(
    gathering: Gathering,
    card: Any,
    attach: Callable[[MeetingResult], Attached],
    detach: Callable[[Attached], None] = lambda attached: None,
) -> Attached:
    """Take part in a meeting with a card that no other participant has.

    Args:
        gathering: Its rules.
        card: What this participant shows the others.
        attach: Makes this participant's object from the result, and closes the result's descriptor.
        detach: Undoes that if another participant can't attach.

    Raises:
        OperationTimeoutError: Not all participants came in time.
        PeerError: Another participant died or failed.
        UsageError: The participants contradict each other.
        OSError: This process can't take part. The others get an error if it has met them.
    """
    try:
        return _meet(gathering, card, attach, detach)
    except OSError as error:
        if isinstance(error, PhalanxError):
            raise
        raise in_words(error, f"{gathering.title}: this process can't meet the others") from error


@contextlib.contextmanager
def closing(outcome: MeetingResult) -> Iterator[int]:
    """Yield the descriptor of the memory, and close it afterwards."""
    try:
        yield outcome.descriptor
    finally:
        os.close(outcome.descriptor)


def _meet(
    gathering: Gathering, card: Any, attach: Callable[[MeetingResult], Attached], detach: Callable[[Attached], None]
) -> Attached:
    address = address_of(gathering.name)
    deadline = time.monotonic() + gathering.timeout_s
    while True:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server:
            try:
                server.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                server.listen(4096)
                return _Organizer(gathering, server, deadline, card).run(attach, detach)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            guest = _Guest(gathering, connection, deadline, card)
            outcome = guest.visit(address)
            if outcome is not None:
                return guest.join(outcome, attach, detach)
        if time.monotonic() > deadline:
            raise _no_answer(gathering)
        time.sleep(_RETRY_S)


def address_of(name: str) -> bytes:
    """Return the address of the socket for a name. Nobody can guess it without the name."""
    return b"\0phalanx-" + hashlib.sha256(f"{os.geteuid()}:{name}".encode()).hexdigest()[:40].encode()


def _no_answer(gathering: Gathering) -> OperationTimeoutError:
    return OperationTimeoutError(
        f"{gathering.title}: timed out after {gathering.timeout_s:.3g} s; "
        "nobody answers at the place where the ranks meet\n"
        "  do       start the job again; perhaps another user holds this place"
    )


def _too_late(gathering: Gathering, cards: Sequence[Any]) -> OperationTimeoutError:
    absence = gathering.describe_missing(cards)
    culprits = tuple(sorted(gathering.missing(cards)))
    return OperationTimeoutError(
        f"{gathering.title}: timed out after {gathering.timeout_s:.3g} s; {absence}\n"
        f"  do       make sure every rank makes this call, or give a longer timeout (timeout_s)",
        culprits=culprits,
        verdict="not joined" if culprits else "",
    )


def blame(gathering: Gathering, rank: int | None, kind: type[PeerError], what: str) -> PeerError:
    """Make the error for a participant that can't continue."""
    who = "a rank" if rank is None else f"rank {rank}"
    return kind(f"{gathering.title}: {who} {what}", culprits=() if rank is None else (rank,))


def is_same_user(connection: socket.socket) -> bool:
    """Tell whether the other end of a Unix socket belongs to the user of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        return False
    # If user numbers are not unique, ask the kernel: a user can't look at the open files of another user.
    return is_number_certain() or os.access(f"/proc/{process}/fd", os.R_OK)


class _Guest:
    """A participant that is not the organizer."""

    def __init__(self, gathering: Gathering, connection: socket.socket, deadline: float, card: Any) -> None:
        self._gathering = gathering
        self._connection = connection
        self._deadline = deadline
        self._card = card
        self._organizer: int | None = None  # its rank

    def visit(self, address: bytes) -> MeetingResult | None:
        """Send the card and wait for the memory; None if there is no organizer: then the caller retries."""
        try:
            # This must not wait for room in the queue: the process that listens there may never accept anything.
            self._connection.setblocking(False)
            self._connection.connect(address)
            self._connection.setblocking(True)
            if not is_same_user(self._connection):
                raise UsageError(
                    f"{self._gathering.title}: another user holds this meeting place\n"
                    "  do       start the job again; if that does not help, tell the administrator of this machine"
                )
            self._connection.send(pickle.dumps(self._card))
            self._await_organizer()
            message, descriptors = receive_with_descriptors(self._connection, 1 << 20, 1)
        except OSError as error:
            if error.errno in _NO_HOST:
                return None
            raise
        if not message:
            return None
        position, cards, self._organizer = _opened(message)
        if not descriptors:  # the kernel drops descriptors that this process may not open
            self._tell("it may not open any more files")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return MeetingResult(position, cards, descriptors[0])

    def join(
        self, outcome: MeetingResult, attach: Callable[[MeetingResult], Attached], detach: Callable[[Attached], None]
    ) -> Attached:
        """Attach to the memory, and wait until all participants have done so."""
        try:
            attached = attach(outcome)
        except BaseException as error:
            self._tell(headline_of(error))
            raise
        try:
            self._connection.send(_ATTACHED)
            self._await_organizer()
            message = self._connection.recv(1 << 20)
            if not message:
                raise ConnectionResetError
            _opened(message)
        except ConnectionError:
            detach(attached)
            self._gathering.check()
            raise blame(self._gathering, self._organizer, PeerDiedError, "died while the others joined") from None
        except BaseException:
            detach(attached)
            raise
        return attached

    def _await_organizer(self) -> None:
        while not is_readable(self._connection.fileno(), _POLL_S):
            self._gathering.check()
            if (
                time.monotonic() > self._deadline + 1
            ):  # the organizer's own deadline comes first, and its error says more
                raise _too_late(self._gathering, [self._card])

    def _tell(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(why.encode())


def _opened(message: bytes) -> Any:
    answer = pickle.loads(message)
    if isinstance(answer, BaseException):
        raise answer
    return answer


class _Organizer:
    def __init__(self, gathering: Gathering, server: socket.socket, deadline: float, card: Any) -> None:
        self._gathering = gathering
        self._server = server
        self._deadline = deadline
        self._card = card
        self._guests: dict[socket.socket, Any] = {}
        self._numbers: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._poll.register(server.fileno(), select.POLLIN)

    def run(self, attach: Callable[[MeetingResult], Attached], detach: Callable[[Attached], None]) -> Attached:
        try:
            while not self._gathering.is_complete(self._cards()):
                self._admit()
                self._gathering.check()
                if time.monotonic() > self._deadline:
                    raise _too_late(self._gathering, self._cards())
            return self._hand_round(attach, detach)
        except BaseException as error:
            self._tell_failure(error)
            raise
        finally:
            self._dismiss()

    def _cards(self) -> list[Any]:
        return [self._card, *self._guests.values()]

    def _admit(self) -> None:
        for number, _ in self._poll.poll(_POLL_S * 1000):
            if number == self._server.fileno():
                guest, _ = self._server.accept()
                guest.settimeout(max(self._deadline - time.monotonic(), _POLL_S))
                card = self._read_card(guest)
                if card is not None:
                    self._guests[guest] = card
                    self._numbers[guest.fileno()] = guest
                    self._poll.register(guest.fileno(), select.POLLIN)
            elif not self._numbers[number].recv(64):  # the guest closed its connection while it waited
                self._poll.unregister(number)
                guest = self._numbers.pop(number)
                del self._guests[guest]
                guest.close()

    def _read_card(self, guest: socket.socket) -> Any:
        try:
            if is_same_user(guest):
                message = guest.recv(1 << 20)
                with contextlib.suppress(Exception):  # not a rank, but another program of this user
                    return pickle.loads(message)
        except (ConnectionError, TimeoutError):
            pass  # the guest has closed its connection
        except OSError:
            guest.close()
            raise
        guest.close()
        return None

    def _hand_round(self, attach: Callable[[MeetingResult], Attached], detach: Callable[[Attached], None]) -> Attached:
        cards = tuple(self._gathering.order(self._cards()))
        memory = self._gathering.create(cards)
        try:
            for guest, its_card in self._guests.items():
                answer = (cards.index(its_card), cards, self._gathering.rank_of(self._card))
                with self._noticing_death(its_card):
                    socket.send_fds(guest, [pickle.dumps(answer)], [memory.descriptor])
            attached = attach(MeetingResult(cards.index(self._card), cards, os.dup(memory.descriptor)))
        finally:
            memory.close_descriptor()
        try:
            for guest, its_card in self._guests.items():
                with self._noticing_death(its_card):
                    self._expect_attached(guest.recv(1 << 16), its_card)
            for guest in self._guests:
                with contextlib.suppress(ConnectionError):  # it has died since; the others find that out by themselves
                    guest.send(pickle.dumps("go"))
        except BaseException:
            detach(attached)
            raise
        return attached

    @contextlib.contextmanager
    def _noticing_death(self, card: Any) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            raise self._blame(card, PeerDiedError, "died while it joined") from error

    def _expect_attached(self, answer: bytes, card: Any) -> None:
        if not answer:
            raise ConnectionResetError
        if answer != _ATTACHED:
            raise self._blame(card, PeerFailedError, f"can't take part: {answer.decode(errors='replace')}")

    def _blame(self, card: Any, kind: type[PeerError], what: str) -> PeerError:
        return blame(self._gathering, self._gathering.rank_of(card), kind, what)

    def _tell_failure(self, error: BaseException) -> None:
        """Tell all guests, including those not yet accepted, why there is no memory for them."""
        reported = error if isinstance(error, PhalanxError) else None
        if reported is None:
            reported = self._blame(self._card, PeerFailedError, f"can't take part: {headline_of(error)}")
        own = self._gathering.rank_of(self._card)
        if isinstance(reported, SharedMemoryError) and own is not None:
            reported.culprits = (own,)
        for guest in self._guests:
            with contextlib.suppress(OSError):
                guest.send(pickle.dumps(reported))
        self._dismiss()  # frees descriptors, so that the others can be accepted
        self._server.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self._server.accept()
                with guest, contextlib.suppress(OSError):
                    if is_same_user(guest):
                        guest.send(pickle.dumps(reported))

    def _dismiss(self) -> None:
        for guest in self._guests:
            guest.close()
        self._guests.clear()

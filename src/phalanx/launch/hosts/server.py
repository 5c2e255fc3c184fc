"""The rendezvous server of a job on several hosts: it seats the hosts, keeps the board, and gives the verdicts.

It runs in the agent of one host and is the only end of the job that listens. It believes nobody without the token: such
a connection is closed before anything is parsed.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from phalanx.errors import UsageError
from phalanx.launch.hosts.blame import (
    BEAT_S,
    SILENCE_S,
    AttemptVerdict,
    AwakeClock,
    Judge,
    describe_lost_launcher,
    describe_silence,
)
from phalanx.launch.hosts.cards import HostCard, RefusedHostError, Seats
from phalanx.launch.hosts.link import LinkError, Message
from phalanx.launch.hosts.shelf import Shelf
from phalanx.launch.hosts.stream import LinkStream

_PROVE_S = 5.0  # to prove that one has the token
_MOST_STRANGERS = 256  # connections that have not proved it yet
_MOST_NEW = 32  # in a step: so one that can prove it has several steps to do so before it is the oldest
_BETWEEN_WARNINGS_S = 5.0  # about one address without the token
_ANSWER_S = 1.5  # for all hosts to answer a question
_WINDOW_S = 0.25  # hosts that fall silent together are named together


@dataclass(eq=False)
class _Peer:
    """The other end of a connection.

    Attributes:
        stream: The connection.
        address: Where it comes from.
        came_at: When it came.
        card: Its card, if it is a host.
        heard_at: When it was last heard.
        ended: The attempt whose ranks have all ended there; -1 for none.
        ready_for: The attempt that it is ready to start.
        is_gone: Whether it has left, died or fallen silent.
    """

    stream: LinkStream
    address: str
    came_at: float
    card: HostCard | None = None
    heard_at: float = 0.0
    ended: int = -1
    ready_for: int = 0
    is_gone: bool = False


@dataclass(eq=False)
class _Question:
    """A question to all hosts, whose answers are collected."""

    answer: Callable[[Message], None]
    waiting_for: set[int]
    deadline: float
    answers: dict[str, object] = field(default_factory=dict)


class RendezvousServer:
    """The server. It has no loop of its own: `step` does what there is to do, and the caller waits in between.

    Args:
        listener: A socket that listens.
        own: The card of the host that it runs on.
        token: The job's secret, or "".
    """

    def __init__(self, listener: socket.socket, own: HostCard, token: str) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._token = token
        self._made_token = "" if token else secrets.token_hex(32)
        self._seats = Seats(own)
        self._shelf = Shelf()
        self._peers: list[_Peer] = []
        self._hosts: list[_Peer] = []  # in order, from the start on
        self._attempt = -1
        self._is_over = False
        self._judge = Judge()
        self._clock = AwakeClock()
        self._beat_at = 0.0
        self._warned_at: dict[str, float] = {}
        self._questions: dict[int, _Question] = {}
        self._num_questions = 0

    def filenos(self) -> list[int]:
        """Return the descriptors to wait for."""
        return [self._listener.fileno(), *(peer.stream.fileno() for peer in self._peers)]

    def writing_filenos(self) -> list[int]:
        """Return the descriptors that are to be written to."""
        return [peer.stream.fileno() for peer in self._peers if peer.stream.is_waiting]

    def is_idle(self) -> bool:
        """Tell whether no other host is connected any more."""
        return all(peer.is_gone or peer.card is None for peer in self._peers)

    def is_busy(self) -> bool:
        """Tell whether step() has something to do soon, even if nothing comes."""
        return bool(self._questions) or self._judge.due_at < float("inf") or self._shelf.due_at < float("inf")

    def step(self, ready: Container[int]) -> None:
        """Read what has come, answer it, and judge what has not come. It never waits.

        Args:
            ready: The descriptors that can be read.
        """
        now = self._clock.tick()
        for peer in [peer for peer in self._peers if peer.stream.fileno() in ready]:
            self._read(peer, now)
        if self._listener.fileno() in ready:
            self._accept(now)
        self._expel_strangers(now)
        self._shelf.expire(now)
        self._finish_questions(now)
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._tell_hosts({"kind": "beat"})
        self._judge_silence(now)
        self._pronounce(now)
        for peer in [peer for peer in self._peers if peer.stream.is_waiting]:
            self._guard(peer, peer.stream.flush)

    def give_up(self, why: str) -> None:
        """Tell all hosts that have come that there will be no job."""
        self._tell_hosts({"kind": "refused", "why": why})

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.stream.close()
        self._listener.close()

    # Connections.

    def _accept(self, now: float) -> None:
        with contextlib.suppress(OSError):
            for _ in range(_MOST_NEW):
                connection, address = self._listener.accept()
                peer = _Peer(LinkStream(connection, self._token, is_server=True), str(address[0]), now)
                self._make_room()
                self._peers.append(peer)
                self._guard(peer, peer.stream.flush)

    def _make_room(self) -> None:
        """Drop the oldest stranger if there are too many. A peer that has the token proves it within a round trip."""
        strangers = [peer for peer in self._peers if not peer.stream.is_open]
        if len(strangers) >= _MOST_STRANGERS:
            self._drop(strangers[0])

    def _read(self, peer: _Peer, now: float) -> None:
        def read() -> None:
            for message in peer.stream.read():
                peer.heard_at = now
                self._hear(peer, message, now)

        self._guard(peer, read)

    def _guard(self, peer: _Peer, act: Callable[[], None]) -> None:
        """Do something with a connection, and drop it if it is broken."""
        if peer not in self._peers:
            return
        try:
            act()
        except LinkError as error:
            if error.kind == "token" and peer.card is None:
                self._warn_of_stranger(peer)
            self._drop(peer)
        except (OSError, EOFError):
            self._drop(peer)

    def _warn_of_stranger(self, peer: _Peer) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(peer.address, -_BETWEEN_WARNINGS_S) < _BETWEEN_WARNINGS_S:
            return
        if len(self._warned_at) < _MOST_STRANGERS:
            self._warned_at[peer.address] = now
            self._say_to_all(f"refused somebody at {peer.address}, who has another token than this job, or none")

    def _expel_strangers(self, now: float) -> None:
        for peer in list(self._peers):
            if not peer.stream.is_open and now - peer.came_at > _PROVE_S:
                self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        peer.stream.close()
        if peer.card is None or peer.is_gone:
            return
        peer.is_gone = True
        if peer in self._hosts:
            self._lose(describe_lost_launcher(self._cards(), self._hosts.index(peer)))
        else:
            self._seats.leave(peer.card)
            self._tell_who_waits()

    # Messages.

    def _hear(self, peer: _Peer, message: Message, now: float) -> None:
        kind = message.get("kind")
        if kind == "host" and peer.card is None:
            self._seat(peer, message)
        elif kind == "ask":
            self._ask(message, self._answering(peer, message), now)
        elif "op" in message:
            self._shelf.serve(message, self._answering(peer, message), now)
        elif peer in self._hosts:
            self._hear_host(peer, message, now)
        elif kind == "leave" and peer.card is not None:
            self._drop(peer)

    def _hear_host(self, peer: _Peer, message: Message, now: float) -> None:
        kind, number = message.get("kind"), self._hosts.index(peer)
        if kind == "accuse" and message.get("attempt") == self._attempt:
            with contextlib.suppress(UsageError):
                self._judge.hear(AttemptVerdict.from_json(message.get("verdict")), now)
        elif kind == "ended" and message.get("attempt") == self._attempt:
            peer.ended = self._attempt
            self._finish()
        elif kind == "ready":
            peer.ready_for = self._attempt + 1
            self._start()
        elif kind == "leave":
            peer.is_gone = True
            self._let_go(peer, number)
        elif kind == "answer":
            question = self._questions.get(int(message.get("id", -1)))
            if question is not None and number in question.waiting_for:
                question.waiting_for.discard(number)
                question.answers[str(number)] = message.get("value")

    def _answering(self, peer: _Peer, message: Message) -> Callable[[Message], None]:
        return functools.partial(self._reply, peer, message.get("id"))

    def _reply(self, peer: _Peer, request: object, answer: Message) -> None:
        self._guard(peer, lambda: peer.stream.send({"id": request, **answer}))

    def _tell_hosts(self, message: Message) -> None:
        for peer in list(self._peers):
            if peer.card is not None:
                self._guard(peer, functools.partial(peer.stream.send, message))

    def _say_to_all(self, text: str) -> None:
        self._tell_hosts({"kind": "say", "text": text})

    # The meeting.

    def _seat(self, peer: _Peer, message: Message) -> None:
        try:
            card = HostCard.from_json(message.get("card"))
            self._seats.admit(card)
        except (UsageError, RefusedHostError) as error:
            name = card.title if isinstance(error, RefusedHostError) else peer.address
            self._say_to_all(f"refused {name}: {error}")
            peer.stream.send({"kind": "refused", "why": str(error)})
            return
        peer.card = card
        self._tell_who_waits()
        if self._seats.is_complete:
            self._hosts = [self._peer_of(card) for card in self._seats.in_order()]
            self._start()

    def _peer_of(self, card: HostCard) -> _Peer:
        return next(peer for peer in self._peers if peer.card is card)

    def _tell_who_waits(self) -> None:
        cards = [card.to_json() for card in self._seats.cards]
        self._tell_hosts({"kind": "waiting", "cards": cards})

    def _cards(self) -> list[HostCard]:
        return [peer.card for peer in self._hosts if peer.card is not None]

    def _start(self) -> None:
        if any(peer.ready_for <= self._attempt or peer.is_gone for peer in self._hosts):
            return
        self._attempt += 1
        if not self._token:
            self._token = self._made_token  # connections from now on must prove that they have it
        self._judge, self._is_over = Judge(), False
        cards = [card.to_json() for card in self._cards()]
        for number, peer in enumerate(self._hosts):
            start = {"cards": cards, "number": number, "attempt": self._attempt, "token": self._made_token}
            where = {"kind": "start", "server": self._own_number(), **start}
            self._guard(peer, functools.partial(peer.stream.send, where))

    # The end.

    def _finish(self) -> None:
        if all(peer.ended == self._attempt for peer in self._hosts) and self._judge.due_at == float("inf"):
            self._is_over = True
            self._tell_hosts({"kind": "over", "attempt": self._attempt})

    def _let_go(self, peer: _Peer, number: int) -> None:
        """Note that a host has left. That is a loss, unless all its ranks had ended well."""
        if peer.ended != self._attempt:
            self._lose(describe_lost_launcher(self._cards(), number))
        elif peer.card == self._seats.own and not self._is_over:
            self._is_over = True  # the server goes with this host, so the others have nobody to tell anything
            self._tell_hosts({"kind": "over", "attempt": self._attempt})

    def _lose(self, verdict: AttemptVerdict) -> None:
        """Give a verdict on a host that is lost; after another verdict, say that there will be no further attempt."""
        if self._is_over:
            return
        if self._judge.verdict is None:
            self._judge.hear(verdict, self._clock.tick())
        self._tell_hosts({"kind": "lost", "text": verdict.text})

    def _judge_silence(self, now: float) -> None:
        def silent_for(peer: _Peer) -> float:
            return now - peer.heard_at

        if self._attempt < 0:
            for peer in [peer for peer in self._peers if peer.card is not None and silent_for(peer) > SILENCE_S]:
                self._drop(peer)
            return
        living = [number for number, peer in enumerate(self._hosts) if not peer.is_gone]
        if not any(silent_for(self._hosts[number]) > SILENCE_S + _WINDOW_S for number in living):
            return
        silent = [number for number in living if silent_for(self._hosts[number]) > SILENCE_S]
        is_alone = len(living) - len(silent) <= 1
        for number in silent:
            self._hosts[number].is_gone = True
        self._lose(describe_silence(self._cards(), silent, self._own_number(), is_alone=is_alone))

    def _own_number(self) -> int:
        return self._cards().index(self._seats.own)

    def _pronounce(self, now: float) -> None:
        if (verdict := self._judge.decide(now)) is not None:
            self._tell_hosts({"kind": "verdict", "attempt": self._attempt, "verdict": verdict.to_json()})

    # Questions to all hosts.

    def _ask(self, message: Message, answer: Callable[[Message], None], now: float) -> None:
        living = {number for number, peer in enumerate(self._hosts) if not peer.is_gone}
        self._num_questions += 1
        self._questions[self._num_questions] = _Question(answer, living, now + _ANSWER_S)
        self._tell_hosts({"kind": "asked", "id": self._num_questions, "what": message.get("what")})

    def _finish_questions(self, now: float) -> None:
        for number, question in list(self._questions.items()):
            if not question.waiting_for or now > question.deadline:
                del self._questions[number]
                question.answer({"answers": question.answers, "silent": sorted(question.waiting_for)})

"""One end of a connection between processes of a job: what it sends, and what the bytes that come mean. It does no I/O.

Both ends prove that they have the job's token before either of them parses anything. Then each message is a length, an
HMAC and JSON. The HMAC covers the direction and the number of the message, so that nobody can change, repeat, reorder
or inject messages. Messages are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from typing import Any, Literal

PROTOCOL = b"phalanx hosts 1"
_NO_TOKEN = "phalanx: no token"
_LENGTH = struct.Struct("!I")
_MAC_BYTES = 32
_LONGEST_LINE = 256
_LONGEST_MESSAGE = 1 << 26
_FAMILY = b"phalanx hosts "

Message = dict[str, Any]


class LinkError(Exception):
    """The other end does not belong to the job.

    Attributes:
        kind: Whether it has another token, another version of the protocol, does not speak it at all, or has sent a
            message that somebody has changed.
    """

    def __init__(self, kind: Literal["token", "version", "foreign", "damaged"]) -> None:
        super().__init__(kind)
        self.kind = kind


class Link:
    """One end. Not for several threads.

    Args:
        token: The job's secret; "" if there is none.
        is_server: Whether this end has listened.

    Attributes:
        outgoing: The bytes to send.
        is_open: Whether both ends have proved that they have the token.
    """

    def __init__(self, token: str, *, is_server: bool) -> None:
        self._secret = hashlib.sha256((token or _NO_TOKEN).encode()).digest()
        self._is_server = is_server
        self._nonce = secrets.token_bytes(32)
        self._nonces = b""
        self._key = b""
        self._received = bytearray()
        self._num_sent = self._num_received = 0
        self.outgoing = bytearray()
        self.is_open = False
        if is_server:
            self._say(PROTOCOL, self._nonce.hex().encode())

    def send(self, message: Message) -> None:
        """Add a message to the outgoing bytes; only if the link is open."""
        assert self.is_open
        body = json.dumps(message, separators=(",", ":")).encode()
        self.outgoing += _LENGTH.pack(len(body)) + self._sign(self._is_server, self._num_sent, body) + body
        self._num_sent += 1

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes that have come; return the messages that are complete now.

        Raises:
            LinkError: The other end does not belong to the job. What is outgoing then should still be sent.
        """
        self._received += data
        while not self.is_open:
            line = self._take_line()
            if line is None:
                return []
            hear = self._hear_proof if self._is_server else self._hear_server
            hear(line)
        messages = []
        while (body := self._take_body()) is not None:
            messages.append(body)
        return messages

    def _say(self, *words: bytes) -> None:
        self.outgoing += b" ".join(words) + b"\n"

    def _take_line(self) -> bytes | None:
        line, end, _ = bytes(self._received[:_LONGEST_LINE]).partition(b"\n")
        if not end:
            if len(line) >= _LONGEST_LINE:
                raise LinkError("foreign")
            return None
        del self._received[: len(line) + 1]
        return line

    def _hear_proof(self, line: bytes) -> None:
        words = line.split(b" ")
        nonce = _unhex(words[0])
        if len(words) != 2 or len(nonce) != 32:
            raise LinkError("foreign")
        self._nonces = self._nonce + nonce
        if not hmac.compare_digest(_unhex(words[1]), self._digest(b"client")):
            self._say(b"refused", b"token")
            raise LinkError("token")
        self._say(self._digest(b"server").hex().encode())
        self._open()

    def _hear_server(self, line: bytes) -> None:
        if self._nonces:
            if line == b"refused token" or not hmac.compare_digest(_unhex(line), self._digest(b"server")):
                raise LinkError("token")
            self._open()
            return
        protocol, _, nonce = line.rpartition(b" ")
        if protocol != PROTOCOL or len(_unhex(nonce)) != 32:
            raise LinkError("version" if line.startswith(_FAMILY) else "foreign")
        self._nonces = _unhex(nonce) + self._nonce
        self._say(self._nonce.hex().encode(), self._digest(b"client").hex().encode())

    def _open(self) -> None:
        self._key = self._digest(b"session")
        self.is_open = True

    def _digest(self, what: bytes) -> bytes:
        return hmac.digest(self._secret, what + self._nonces, "sha256")

    def _sign(self, is_from_server: bool, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, struct.pack("!?Q", is_from_server, number) + body, "sha256")

    def _take_body(self) -> Message | None:
        start = _LENGTH.size + _MAC_BYTES
        if len(self._received) < start:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _LONGEST_MESSAGE:
            raise LinkError("damaged")
        if len(self._received) < start + length:
            return None
        mac, body = bytes(self._received[_LENGTH.size : start]), bytes(self._received[start : start + length])
        if not hmac.compare_digest(mac, self._sign(not self._is_server, self._num_received, body)):
            raise LinkError("damaged")
        del self._received[: start + length]
        self._num_received += 1
        message: Message = json.loads(body)
        return message


def _unhex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""

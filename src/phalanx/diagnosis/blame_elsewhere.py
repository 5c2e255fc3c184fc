"""Find out which ranks an error text from another host blames, and for what.

Texts come from the ranks of that host and from the launchers, and all of them are for people. Pure functions over
them, so that programs get the same attributes of an error whether the culprit is on this host or on another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBERS = r"(\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)"
_AT_FRONT = re.compile(rf"^(?:host \d+: )?(?:host \d+ \((?:\S+, )?)?ranks? {_NUMBERS}\b")
_LATE = re.compile(rf"\branks? {_NUMBERS}\)? did not come$")
# Of a message: in the words of the rank that waited, or of its host.
_IN_VAIN = re.compile(r"\brank (\d+)(?: on host \d+)?(?:: (?:it|rank \d+))? has not (sent|received) it$")
_TOPIC = re.compile(r"ranks disagree on ([\w ]+)$")
# An error of a rank, retold. A launcher says "failed", and means the number of the job; a group says "raised".
_RETOLD = re.compile(r' (failed|raised): (\w+): \w+(?: #\d+)? of group "([^"]*)": (.*?)(?: \([^() ]+:\d+\))?$')
_WORLDS = ("world", "0")  # their numbers are those of the job
_SHORT = {"split sizes": "size", "the sizes of tensors": "size"}  # as phalanx.diagnosis.explain has it
_KINDS = {"OperationTimeoutError": "timeout", "PeerLeftError": "peer_left", "PeerDiedError": "peer_died"}
_VERDICTS = (
    (re.compile(r" was killed by | ended with exit code |connection to .* was lost|has been silent|has died"), "died"),
    (re.compile(r" had its arguments refused"), "refused"),
    (re.compile(r" raised: | failed: "), "raised"),
    (re.compile(r" closed the group"), "left"),
    (re.compile(r" has reached the end of "), "ended"),
)


def find_blame(
    kind: str, headline: str, lines: Sequence[str], group: str = "world", own: int = -1
) -> tuple[tuple[int, ...], str]:
    """Return the culprits, as far as they are known, and the verdict: the attributes of a PhalanxError.

    Args:
        kind: The kind of the fault, such as "mismatch".
        headline: The first line of the text.
        lines: The others.
        group: The name of the group that is broken.
        own: The rank for which the text is. If another rank waits in vain for its message, it blames that one.
    """
    blame = _find_blame(kind, headline, lines, group)
    front = _AT_FRONT.search(headline)
    if blame[0] == (own,) and blame[1] in ("no sender", "no receiver") and front is not None:
        return _expand(front[1]), "late"
    return blame


def _find_blame(kind: str, headline: str, lines: Sequence[str], group: str) -> tuple[tuple[int, ...], str]:
    if kind == "mismatch":
        topic = _TOPIC.search(headline)
        is_unknown = any(line.startswith("  unknown ") for line in lines)
        culprits = () if is_unknown else _labelled("differs", lines)
        return culprits, f"different {_SHORT.get(topic[1], topic[1])}" if topic else "different operation"
    if kind == "timeout":
        if message := _IN_VAIN.search(headline):
            return (int(message[1]),), "no sender" if message[2] == "sent" else "no receiver"
        late = _LATE.search(headline)
        return _labelled("missing", lines) or (_expand(late[1]) if late else ()), "late"
    retold = _RETOLD.search(headline)
    if retold is not None and (retold[3] in _WORLDS if retold[1] == "failed" else retold[3] == group):
        blame = _find_blame(_KINDS.get(retold[2], ""), retold[4], [], group)
        if blame[0]:
            return blame
    verdict = next((verdict for pattern, verdict in _VERDICTS if pattern.search(headline)), "elsewhere")
    front = _AT_FRONT.search(headline)
    return _expand(front[1]) if front else (), verdict


def without_agreeing(call: str, lines: Sequence[str]) -> list[str]:
    """Leave out the ranks that called what this rank has called; then it is known who is right.

    Args:
        call: The call of this rank, without its place.
        lines: What a host says whose ranks disagree.
    """
    agreeing = [line for line in lines if line.startswith("  differs ") and f" called {call}," in line]
    differing = [line for line in lines if line.startswith("  differs ") and line not in agreeing]
    if not agreeing or not differing:
        return list(lines)
    return [line for line in lines if line not in agreeing and not line.startswith("  unknown ")]


def _labelled(label: str, lines: Sequence[str]) -> tuple[int, ...]:
    found = [re.match(rf"  {label} +ranks? {_NUMBERS}\b", line) for line in lines]
    return tuple(sorted({rank for match in found if match for rank in _expand(match[1])}))


def _expand(numbers: str) -> tuple[int, ...]:
    """Return the ranks in a list such as "0-2, 5"."""
    ranges = [part.partition("-") for part in numbers.split(", ")]
    return tuple(rank for first, _, last in ranges for rank in range(int(first), int(last or first) + 1))

"""Make the exception for a failed operation, from its facts and a snapshot of the journal.

Pure functions: no waiting, no I/O, so every message can be tested from literals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from phalanx.diagnosis import formatting
from phalanx.diagnosis.blame_elsewhere import find_blame
from phalanx.diagnosis.lateness import (
    awaited_ranks,
    broken_message,
    held_up_ranks,
    is_cut_off,
    is_elsewhere,
    late_ranks,
)
from phalanx.diagnosis.scene import Scene
from phalanx.diagnosis.sides import Sides, describe_doubt, find_minority, sides_of
from phalanx.engine.facts import EntryFacts, Trouble
from phalanx.errors import (
    AbortedError,
    ClosedError,
    DeadlockError,
    Details,
    InternalError,
    MismatchError,
    OperationTimeoutError,
    PeerDiedError,
    PeerFailedError,
    PeerLeftError,
    PhalanxError,
    SharedMemoryError,
    UsageError,
)

__all__ = ["describe_missing", "explain", "late_ranks"]
_WORLD = "world"  # of the launchers, whose ranks have the numbers of the job


def explain(facts: Trouble, scene: Scene) -> PhalanxError:
    """Return the exception for these facts."""
    return _EXPLAINERS.get(facts.kind, _unknown)(facts, scene)


def _title(facts: Trouble, scene: Scene) -> str:
    number = f" #{facts.seq}" if facts.seq else ""
    return f'{facts.operation}{number} of group "{scene.group}"'


def _here(facts: Trouble, scene: Scene) -> str:
    entry = scene.entries[scene.rank] if scene.entries else None
    text = f"rank {scene.rank} of {scene.num_ranks}"
    location = facts.location if entry is None else entry.location
    where = f", {formatting.place(location)}" if location else ""
    if entry is not None:
        return f"{text} called {formatting.call(entry)}{where}"
    if facts.shape:
        return f"{text} called {facts.operation} {facts.dtype} {formatting.shape(facts.shape)}{where}"
    return text


def _details(*pairs: tuple[str, str]) -> Details:
    return tuple((label, text) for label, text in pairs if text)


def _text_of(details: Details) -> str:
    return "".join(f"\n  {label:<8} {text}" for label, text in details)


def _error(
    kind: type[PhalanxError],
    headline: str,
    details: Details,
    facts: Trouble,
    scene: Scene,
    culprits: Sequence[int] = (),
    verdict: str = "",
) -> PhalanxError:
    error = kind(
        f"{_title(facts, scene)}: {headline}{_text_of(details)}",
        group=scene.group,
        rank=scene.rank,
        num_ranks=scene.num_ranks,
        operation=facts.operation,
        sequence=facts.seq or None,
        culprits=tuple(culprits),
        verdict=verdict,
    )
    error.details = details
    return error


def _usage(facts: Trouble, scene: Scene) -> PhalanxError:
    return _error(UsageError, facts.text, _details(("here", f"rank {scene.rank} of {scene.num_ranks}")), facts, scene)


def _closed(facts: Trouble, scene: Scene) -> PhalanxError:
    advice = "call it before close(), or make a new group with split() or phalanx.connect()"
    return _error(ClosedError, "the group is closed", _details(("do", advice)), facts, scene)


def _forked(facts: Trouble, scene: Scene) -> PhalanxError:
    advice = "use the group in the process that made it; child processes make their own"
    return _error(ClosedError, "this process was forked from the rank", _details(("do", advice)), facts, scene)


_SHOWN_RANKS = 8

_FIELDS: tuple[tuple[Callable[[EntryFacts], object], str, str], ...] = (
    (lambda entry: entry.operation, "operation", "call the same operations in the same order on every rank"),
    (lambda entry: entry.device, "device", "give every rank a tensor on the same kind of device"),
    (lambda entry: entry.dtype, "dtype", "give every rank the same dtype"),
    (lambda entry: entry.op, "reduce operation", "give every rank the same op"),
    (lambda entry: entry.root, "root", "give every rank the same root"),
    (
        lambda entry: entry.shape,
        "shape",
        "give every rank the same shape, e.g. drop the last partial batch (drop_last=True)",
    ),
    (lambda entry: entry.count, "size", "give every rank the same sizes in the same order"),
)


def _mismatch(facts: Trouble, scene: Scene) -> PhalanxError:
    entries = {rank: entry for rank, entry in enumerate(scene.entries) if entry is not None}
    mine = entries.get(scene.rank)
    where = ""
    if is_elsewhere(facts):
        if not entries:
            return _elsewhere(facts, scene)
        if mine is None:
            where = f"the group broke in operation #{facts.fault_seq}, where "
        else:  # this rank did not have to compare calls in that operation; it notices the mismatch now
            facts = facts._replace(operation=mine.operation, seq=facts.fault_seq)
    elif facts.is_message:
        return _message_mismatch(facts, scene)
    if facts.found_bytes != facts.wanted_bytes:
        return _size_mismatch(facts, scene)
    field, advice = "operation", _FIELDS[0][2]
    for read, label, hint in _FIELDS:
        if len({read(entry) for entry in entries.values()}) > 1:
            field, advice = label, hint
            break
    sides = _sides(facts, scene, entries)
    others: dict[str, list[int]] = {}
    for rank, entry in entries.items():
        if not any({rank, scene.rank} <= set(side) for side in sides):
            others.setdefault(_called(entry), []).append(rank)
    pairs = [
        ("differs", f"{scene.process(ranks[0]) if len(ranks) == 1 else formatting.rank_list(ranks)} {text}")
        for text, ranks in others.items()
    ]
    pairs.append(("unknown", describe_doubt(sides, scene.num_ranks)))
    details = _details(("here", _here(facts, scene)), *pairs, ("do", advice))
    headline = f"{where}ranks disagree on {field}"
    return _disagreement(headline, details, facts, scene, sides, f"different {field}")


def _called(entry: EntryFacts) -> str:
    return f"called {formatting.call(entry)}" + (f", {formatting.place(entry.location)}" if entry.location else "")


def _disagreement(
    headline: str, details: Details, facts: Trouble, scene: Scene, sides: Sides, verdict: str
) -> PhalanxError:
    error = _error(MismatchError, headline, details, facts, scene, find_minority(sides, scene.num_ranks), verdict)
    assert isinstance(error, MismatchError)
    error.sides = sides
    return error


def _sides(facts: Trouble, scene: Scene, entries: Mapping[int, EntryFacts]) -> Sides:
    """Return the ranks that made the same call, as far as this rank knows."""
    # The engine compares shapes by their number of elements, which is the count. In an all_to_all, shapes may differ.
    # But if nothing else does, they are what ranks disagree on.
    is_exchange = all(entry.operation == "all_to_all" for entry in entries.values())
    calls: dict[int, object] = {
        rank: (
            entry.operation,
            entry.dtype,
            entry.device,
            entry.op,
            entry.root,
            entry.count,
            is_exchange and entry.shape,
        )
        for rank, entry in entries.items()
    }
    if scene.rank not in calls and not is_elsewhere(facts):
        # This rank came when the group was broken, so its call is not in the journal, and these facts do not say how it
        # reduces. If two calls differ only in that, it is not known which of them is the same as this one.
        alike = {calls[rank] for rank, entry in entries.items() if _is_like(facts, entry)}
        if len(alike) < 2:
            calls[scene.rank] = alike.pop() if alike else facts
    return sides_of(calls)


def _is_like(facts: Trouble, entry: EntryFacts) -> bool:
    """Tell whether the call of this rank is the same as another rank's, as far as this rank's facts go."""
    own = (facts.operation, facts.dtype, facts.device, math.prod(facts.shape))
    is_same_root = facts.root == entry.root or not entry.is_rooted
    return own == (entry.operation, entry.dtype, entry.device, math.prod(entry.shape)) and is_same_root


def _size_mismatch(facts: Trouble, scene: Scene) -> PhalanxError:
    sent, expected = facts.found_bytes, facts.wanted_bytes
    sender, receiver = facts.culprit, facts.reporter
    odd = _odd_one_out(scene.entries, (sender, receiver))
    entry = None if odd is None else scene.entries[odd]
    what = f"sends {sent} bytes, rank {receiver} has room for {expected}"
    pairs = [("differs", f"{scene.process(sender)} {what}")]
    if odd is not None and entry is not None:
        pairs = [("differs", f"{scene.process(odd)} {_called(entry)}"), ("sizes", f"rank {sender} {what}")]
    what, advice = "split sizes", "let rank i's input split for rank j equal rank j's output split for rank i"
    if facts.operation != "all_to_all":
        what, advice = "the sizes of tensors", "give every rank lists of the same tensors, in the same order"
        pairs = [("differs", f"{scene.process(sender)} has {sent} where {expected} are expected")]
    calls = {sender: "sends", receiver: "receives"}
    if odd is not None:
        calls = {rank: formatting.call(each) for rank, each in enumerate(scene.entries) if each is not None}
    sides = sides_of(calls)
    if odd is None and scene.num_ranks > 2:
        pairs.append(("unknown", f"who is right: rank {sender} or rank {receiver}"))
    details = _details(("here", _here(facts, scene)), *pairs, ("do", advice))
    return _disagreement(f"ranks disagree on {what}", details, facts, scene, sides, "different size")


def _odd_one_out(entries: Sequence[EntryFacts | None], pair: tuple[int, int]) -> int | None:
    """Return which of two ranks differs from more than half of all ranks; None if that is not clear."""
    calls = [None if entry is None else formatting.call(entry) for entry in entries]
    usual = [call for call in set(calls) if call is not None and 2 * calls.count(call) > len(calls)]
    odd = [rank for rank in pair if usual and calls[rank] not in (None, *usual)]
    return odd[0] if len(odd) == 1 else None


def _message_mismatch(facts: Trouble, scene: Scene) -> PhalanxError:
    peer = facts.culprit
    if facts.operation == "send":
        what, advice = "has a buffer of another size or dtype", "let both sides use the same shape and dtype"
    else:
        what = f"sent {facts.found_bytes} bytes of another size or dtype"
        advice = "receive into a tensor of the sent shape and dtype"
    own = f"rank {scene.rank} of {scene.num_ranks} has {facts.dtype} {formatting.shape(facts.shape)}"
    details = _details(("here", own), ("differs", f"{scene.process(peer)} {what}"), ("do", advice))
    what = f"the message and the buffer differ (rank {peer})"
    return _error(MismatchError, what, details, facts, scene, [peer], "different message")


def _elsewhere(facts: Trouble, scene: Scene) -> PhalanxError:
    """Explain a mismatch in an operation that is not in the journal any more."""
    number, reporter = facts.fault_seq, facts.reporter
    what = f"ranks called different things (noticed by rank {reporter})"
    headline = f"the group broke in operation #{number}, where {what}"
    details = _details(
        ("here", f"rank {scene.rank} of {scene.num_ranks}"),
        ("do", "see the error of the ranks that were in that operation"),
    )
    return _disagreement(headline, details, facts, scene, ((facts.culprit,), (reporter,)), "")


def _timeout(facts: Trouble, scene: Scene) -> PhalanxError:
    if is_cut_off(facts, scene.rows):
        return _cut_off(facts, scene)
    if facts.awaited == "stream":
        return _busy_gpu(facts, scene)
    if facts.is_message:
        return _message_timeout(facts, scene)
    missing = late_ranks(facts, scene.rows)
    who = f"{formatting.rank_list(missing)} did not come" if missing else "the operation did not end"
    if missing == [scene.rank]:
        who = "this rank came too late"
    verdict, advice = _why_late(missing, scene)
    pairs = [*_missing(missing, scene), *_held_up(facts, missing, scene), *_circle(scene)]
    details = _details(("here", _here(facts, scene)), *pairs, ("do", advice))
    return _error(OperationTimeoutError, f"{_when(facts, scene)} {who}", details, facts, scene, missing, verdict)


def _busy_gpu(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    own = message_here(facts, scene) if facts.is_message else _here(facts, scene)
    details = _details(
        ("here", own),
        ("do", f"look for a long kernel or copy on rank {rank}'s current stream, or give a longer timeout"),
    )
    headline = f"{_when(facts, scene)} the GPU has not finished what rank {rank} gave it before this call"
    return _error(OperationTimeoutError, headline, details, facts, scene, [rank], "busy GPU")


def _when(facts: Trouble, scene: Scene) -> str:
    """Say which rank timed out, and in which operation if it was another one."""
    reporter, number = facts.reporter, facts.fault_seq
    if is_elsewhere(facts) and facts.seq > number:
        return f"the group broke in operation #{number}, where rank {reporter} timed out:"
    if is_elsewhere(facts):
        return f"rank {reporter} timed out in operation #{number},"
    return f"{_own_or_other(facts, scene)},"


def _own_or_other(facts: Trouble, scene: Scene) -> str:
    if facts.reporter not in (scene.rank, -1):
        return f"rank {facts.reporter} timed out"
    return f"timed out after {formatting.seconds(facts.timeout_s)}"


def _missing(ranks: Sequence[int], scene: Scene) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for rank in ranks[:_SHOWN_RANKS]:
        pairs += [("missing", f"{scene.process(rank)} {scene.whereabouts(rank)}"), *scene.stand(rank)]
    return pairs


def _held_up(facts: Trouble, missing: Sequence[int], scene: Scene) -> list[tuple[str, str]]:
    """Return the lines about ranks that are late only because they wait for the missing ranks."""
    late = [row.rank for row in scene.rows if row.arrived < facts.fault_seq and row.rank != scene.rank]
    held_up = sorted(held_up_ranks(late, scene.rows).difference(missing))
    return [("held up", f"{scene.process(rank)} {scene.whereabouts(rank)}") for rank in held_up[:_SHOWN_RANKS]]


def _cut_off(facts: Trouble, scene: Scene) -> PhalanxError:
    """Explain that a message of other ranks broke the group."""
    message = broken_message(facts, scene.rows)
    assert message is not None
    culprits = late_ranks(facts, scene.rows)
    verdict = "deadlock" if scene.around.cycle else "no receiver" if message.operation == "send" else "no sender"
    headline = f"the group broke when rank {facts.reporter} timed out in {formatting.operation(message)}"
    details = _details(
        ("here", f"rank {scene.rank} of {scene.num_ranks}"),
        *_missing(culprits, scene),
        *_circle(scene),
        ("do", f"see the error of rank {facts.reporter}"),
    )
    return _error(OperationTimeoutError, headline, details, facts, scene, culprits, verdict)


def _why_late(missing: Sequence[int], scene: Scene) -> tuple[str, str]:
    """Return the verdict on ranks that did not come, and what to do about it."""
    if scene.around.cycle:
        return "deadlock", "make these calls in the same order on every rank"
    states = {scene.rows[rank].state for rank in missing}
    if states == {"absent"}:
        return "not joined", "let every rank make the group; ranks that don't need it must not be in it"
    if any(scene.around.states.get(rank) == "stopped" for rank in missing):
        return "stopped", "let the stopped rank go on"
    return "late", "find out why it is late, or give a longer timeout (timeout_s)"


def _way_out(facts: Trouble, scene: Scene) -> str:
    has_messages = facts.is_message or any(row.mail is not None for row in scene.rows)
    if has_messages:
        return "let one rank send while the other receives, or use async_op=True and wait for all of them afterwards"
    return "make these calls in the same order on every rank"


def _deadlock(facts: Trouble, scene: Scene) -> PhalanxError:
    headline, *circle = facts.text.splitlines() or ["the ranks wait for each other"]
    own = message_here(facts, scene) if facts.is_message else _here(facts, scene)
    details = _details(
        ("here", own),
        *(("cycle" if number == 0 else "", text) for number, text in enumerate(circle)),
        ("do", _way_out(facts, scene)),
    )
    awaited = awaited_ranks(scene.rows[scene.rank], scene.rows) if scene.rows else []
    culprits = [rank for rank in awaited if rank >= 0]
    return _error(DeadlockError, f"deadlock: {headline}", details, facts, scene, culprits, "deadlock")


def _circle(scene: Scene) -> list[tuple[str, str]]:
    """Return the lines of a deadlock."""
    return [("cycle" if number == 0 else "", text) for number, text in enumerate(scene.around.cycle)]


def _message_timeout(facts: Trouble, scene: Scene) -> PhalanxError:
    peer, is_send = facts.root, facts.operation == "send"
    whom = "any rank" if peer < 0 else f"rank {peer}"
    after = _own_or_other(facts, scene)
    if peer < 0:
        what, do = "no rank has sent it", "let a rank send it, with this tag"
    elif is_send:
        what, do = f"{whom} has not received it", f"let rank {peer} call recv(source={scene.rank}) with this tag"
    else:
        what, do = f"{whom} has not sent it", f"let rank {peer} call send(destination={scene.rank}) with this tag"
    mail = None if peer < 0 or not scene.rows else scene.rows[peer].mail
    is_met = mail is not None and mail.root == scene.rank and mail.operation != facts.operation
    if mail is not None and is_met and mail.device != facts.device:
        what = f"{whom} has a tensor on {mail.device}, this rank one on {facts.device}"
        do = "give tensors on the same kind of device on both sides"
    elif mail is not None and is_met and mail.device == "cuda" and mail.count == facts.tag:
        what = f"{whom} has called {mail.operation}, and a GPU is not done with what it was given before"
        do = "look for a long kernel or copy on either rank's current stream, or give a longer timeout"
    pairs = [] if peer < 0 or not scene.rows else [("waits for", f"{scene.process(peer)} {scene.whereabouts(peer)}")]
    pairs += scene.stand(peer)
    verdict = "deadlock" if scene.around.cycle else "no receiver" if is_send else "no sender"
    circle = [] if is_met else _circle(scene)  # the two ends of one message do not form a circle
    details = _details(("here", message_here(facts, scene)), *pairs, *circle, ("do", do))
    culprits = [peer] if peer >= 0 else []
    return _error(
        OperationTimeoutError, f"{after}, waiting for {whom}: {what}", details, facts, scene, culprits, verdict
    )


def message_here(facts: Trouble, scene: Scene) -> str:
    """Say what this rank sends or receives."""
    direction = "sends" if facts.operation == "send" else "receives"
    tag = f", tag {facts.tag}" if facts.tag else ""
    where = f", {formatting.place(facts.location)}" if facts.location else ""
    what = f"{facts.dtype} {formatting.shape(facts.shape)}" + (" on cuda" if facts.device == "cuda" else "")
    return f"rank {scene.rank} of {scene.num_ranks} {direction} {what}{tag}{where}"


def describe_missing(scene: Scene, missing: Iterable[int]) -> str:
    """Say what the ranks that are missing when a group is made do instead."""
    ranks = sorted(missing)
    return f"{formatting.rank_list(ranks)} did not come" + _text_of(_details(*_missing(ranks, scene)))


def _peer_died(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    status = scene.rows[rank].exit_status if scene.rows else -1
    details = _details(
        ("here", _here(facts, scene)),
        ("died", f"{scene.process(rank)} {scene.whereabouts(rank)}" if scene.rows else ""),
        ("do", f"look at what rank {rank} printed last; go on without it with group.shrink()"),
    )
    headline, verdict = f"{scene.process(rank)} {formatting.death(status)}", "died"
    if status == 0 and not scene.rows[rank].pid:
        headline, verdict = (
            f"{scene.process(rank)} has reached the end of {scene.part}, and never joined the group",
            "ended",
        )
        details = _details(("here", _here(facts, scene)), ("do", "let every rank make the group and the same calls"))
    error = _error(PeerDiedError, headline, details, facts, scene, [rank], verdict)
    assert isinstance(error, PeerDiedError)
    error.pid = scene.rows[rank].any_pid if scene.rows else 0
    error.last_call = scene.whereabouts(rank) if scene.rows and scene.has_called(rank) else ""
    error.exit_code = status if 0 <= status < 256 else None
    error.signal = status - 256 if status >= 256 else None
    return error


def _peer_left(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    row = scene.rows[rank] if scene.rows else None
    last = [("left", f"{scene.process(rank)} {scene.whereabouts(rank)}"), *scene.stand(rank)] if row is not None else []
    why = row.departure if row is not None else ""
    if why == "dropped" and scene.around.states.get(rank) == "gone":
        why = "ended"
    how, advice = _departure(why, scene)
    details = _details(("here", _here(facts, scene)), *last, ("do", advice))
    verdict = "ended" if why == "ended" else "left"
    error = _error(PeerLeftError, f"{scene.process(rank)} {how}", details, facts, scene, [rank], verdict)
    assert isinstance(error, PeerLeftError)
    error.pid = row.any_pid if row is not None else 0
    error.last_call = formatting.operation(row.entry) if row is not None and row.entry is not None else ""
    return error


def _departure(why: str, scene: Scene) -> tuple[str, str]:
    """Say why a rank has left a group, and what to do about it."""
    if why == "ended":
        return f"has reached the end of {scene.part}", "let every rank make the same calls before it ends"
    if why == "dropped":
        how = "no longer has the group, because its program dropped the last reference to it"
        return how, "let every rank make the same calls, and keep the group in a variable until then"
    return "closed the group", "let every rank make the same calls before it closes the group"


def _peer_failed(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    if facts.text.startswith(formatting.ELSEWHERE):
        details = _details(("here", _here(facts, scene)), ("do", "look at what that host printed"))
        why = facts.text.removeprefix(formatting.ELSEWHERE)
        culprits, verdict = find_blame("elsewhere", why.partition("\n")[0], [])
        # The launchers' numbers are those of the job. In a part of it, ranks have others.
        is_of_all = f" of {scene.num_ranks} " in why or scene.group == _WORLD
        known = [rank for rank in culprits if is_of_all and rank < scene.num_ranks]
        # What a program does about a lost rank must not depend on who has noticed the loss.
        kind = PeerDiedError if verdict == "died" else PeerFailedError
        return _error(kind, why, details, facts, scene, known, verdict)
    what = facts.text.splitlines()[0] if facts.text else "an exception"
    how = "had its arguments refused" if not facts.is_fatal else "raised"
    if rank < 0:  # in a group that this one was split from, where ranks have other numbers
        details = _details(("here", _here(facts, scene)), ("do", "look at what the other ranks printed"))
        return _error(PeerFailedError, f"another rank raised: {what}", details, facts, scene, verdict="raised")
    last, advice = ("", ""), f"correct the call on rank {rank}"
    if facts.is_fatal:
        advice = f"look at the traceback of rank {rank}"
        last = ("last", f"{scene.process(rank)} {scene.whereabouts(rank)}" if scene.rows else "")
    details = _details(("here", _here(facts, scene)), last, ("do", advice))
    verdict = "raised" if facts.is_fatal else "refused"
    return _error(PeerFailedError, f"{scene.process(rank)} {how}: {what}", details, facts, scene, [rank], verdict)


def _aborted(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    why = f": {facts.text}" if facts.text else ""
    details = _details(("here", _here(facts, scene)), ("do", "make a new group: shrink(), or phalanx.connect()"))
    return _error(AbortedError, f"rank {rank} aborted the group{why}", details, facts, scene, [rank])


def _interrupted(facts: Trouble, scene: Scene) -> PhalanxError:
    rank = facts.culprit
    details = _details(("here", _here(facts, scene)))
    return _error(AbortedError, f"rank {rank} was interrupted", details, facts, scene, [rank])


def _out_of_memory(facts: Trouble, scene: Scene) -> PhalanxError:
    needed, available = facts.wanted_bytes, facts.found_bytes
    what = f"rank {facts.culprit} has not enough shared memory"
    details = _details(
        ("needed", f"{needed / 2**20:.1f} MiB"),
        ("available", f"{available / 2**20:.1f} MiB (memory, control-group and address-space limits)"),
        ("do", "use fewer ranks or smaller tensors, or raise the limit"),
    )
    error = _error(SharedMemoryError, what, details, facts, scene, [facts.culprit])
    assert isinstance(error, SharedMemoryError)
    error.needed_bytes, error.available_bytes = needed, available
    return error


def _unknown(facts: Trouble, scene: Scene) -> PhalanxError:
    return _error(InternalError, f"unknown trouble {facts}", (), facts, scene)


_EXPLAINERS: dict[str, Callable[[Trouble, Scene], PhalanxError]] = {
    "usage": _usage,
    "closed": _closed,
    "forked": _forked,
    "mismatch": _mismatch,
    "timeout": _timeout,
    "peer_died": _peer_died,
    "peer_left": _peer_left,
    "peer_failed": _peer_failed,
    "aborted": _aborted,
    "interrupted": _interrupted,
    "out_of_memory": _out_of_memory,
    "deadlock": _deadlock,
}

"""Errors of a group over hosts: what happened on this host, with the numbers of the whole group, and on other hosts.

Pure functions over facts, as phalanx.diagnosis.explain has them for one host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.diagnosis import Scene, explain, formatting
from phalanx.diagnosis.blame_elsewhere import find_blame, without_agreeing
from phalanx.diagnosis.explain import message_here
from phalanx.diagnosis.surroundings import Surroundings
from phalanx.engine.facts import EntryFacts, RankFacts, Trouble, far_rank
from phalanx.errors import (
    AbortedError,
    DeadlockError,
    MismatchError,
    OperationTimeoutError,
    PeerDiedError,
    PeerFailedError,
    PeerLeftError,
    PhalanxError,
    SharedMemoryError,
)
from phalanx.groups.hosts import HostTable
from phalanx.launch.agent_line import HostRows

ELSEWHERE = -2  # the culprit of a fault if it is a rank of another host; see native/core/faults.hpp

_ERRORS: dict[str, type[PhalanxError]] = {
    "mismatch": MismatchError,
    "timeout": OperationTimeoutError,
    "peer_died": PeerDiedError,
    "peer_left": PeerLeftError,
    "peer_failed": PeerFailedError,
    "aborted": AbortedError,
    "interrupted": AbortedError,
    "out_of_memory": SharedMemoryError,
    "deadlock": DeadlockError,
}
_ADVICE = {
    "mismatch": "call the same operations in the same order with the same sizes on every rank of every host",
    "timeout": "find out why it is late, or give a longer timeout (timeout_s)",
    "peer_left": "let every rank make the same calls before it closes the group",
}
_LATE = " did not come"
_SIZES = re.compile(r"rank (\d+) on host \d+ sends \d+ bytes, rank (\d+) has room for ")


@dataclass(frozen=True)
class HostWords:
    """The point of view of one rank.

    Attributes:
        group: The group's name.
        rank: The rank.
        table: The ranks of each host.
    """

    group: str
    rank: int
    table: HostTable

    @property
    def here(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return self.table.hosts[self.table.host_of(self.rank)]

    def explain_here(
        self,
        facts: Trouble,
        rows: Sequence[RankFacts],
        entries: Sequence[EntryFacts | None],
        around: Surroundings,
    ) -> PhalanxError:
        """Return the exception for what happened on this host; the arguments have the numbers of its ranks here."""
        told = facts._replace(
            culprit=self.rank_of(facts.culprit),
            reporter=self.rank_of(facts.reporter),
            root=self.rank_of(facts.root) if facts.is_message else facts.root,
        )
        return explain(told, self._scene(rows, entries, around, facts.fault_seq))

    def rank_of(self, local: int) -> int:
        """Return the rank with a number on this host, or of another host; other numbers stay as they are."""
        far = far_rank(local)
        if far is not None:
            return far
        return self.here[local] if 0 <= local < len(self.here) else local

    def explain_message(self, facts: Trouble, answers: Sequence[HostRows] = ()) -> PhalanxError:
        """Return the exception for a message with a rank of another host whose ends differ, or that was late.

        Args:
            facts: Of the message.
            answers: What the launchers of all hosts see of the group, if it was late.
        """
        peer, is_send = self.rank_of(facts.root), facts.operation == "send"
        if facts.kind == "mismatch":
            headline = f"the message and the buffer differ (rank {peer})"
            what, advice = "has a buffer", "let both sides use the same shape and dtype"
            if not is_send:
                what, advice = f"sent {facts.found_bytes} bytes", "receive into a tensor of the sent shape and dtype"
            more = [f"  differs  {facts.text}", f"           it {what} of another size or dtype"]
            verdict = "different message"
        else:
            what = "has not received it" if is_send else "has not sent it"
            whom = f"rank {peer} on host {self.table.host_of(peer)}"
            headline = f"timed out after {formatting.seconds(facts.timeout_s)}, waiting for {whom}: it {what}"
            other = f"recv(source={self.rank})" if is_send else f"send(destination={self.rank})"
            more, verdict = self._describe_peer(answers, peer), "no receiver" if is_send else "no sender"
            advice = f"let rank {peer} call {other} with this tag"
        here = message_here(facts, Scene(self.group, self.rank, self.table.size))
        title = f'{facts.operation} of group "{self.group}": {headline}'
        return _ERRORS[facts.kind](
            "\n".join([title, f"  here     {here}", *more, f"  do       {advice}"]),
            group=self.group,
            rank=self.rank,
            num_ranks=self.table.size,
            operation=facts.operation,
            culprits=(peer,),
            verdict=verdict,
        )

    def explain_elsewhere(self, facts: Trouble, entry: EntryFacts | None) -> PhalanxError:
        """Return the exception for what happened on another host.

        Args:
            facts: The text is what that host says, or what the launchers say of ranks that are late.
            entry: The call of this rank.
        """
        headline, *more = facts.text.splitlines() or ["something happened on another host"]
        if facts.kind == "mismatch" and " called " in headline:
            headline, more = "hosts called different things", [f"  differs  {headline}", *more]
        if facts.kind == "mismatch" and (sizes := _SIZES.match(headline)):
            doubt = f"  unknown  who is right: rank {sizes[1]} or rank {sizes[2]}"
            headline, more = "ranks disagree on split sizes", [f"  differs  {headline}", doubt]
        if facts.kind == "timeout" and headline.endswith(_LATE) and not facts.is_message:
            headline = f"timed out after {formatting.seconds(facts.timeout_s)}, {headline}"
        if entry is not None and facts.kind == "mismatch":
            more = without_agreeing(formatting.call(entry), more)
        culprits, verdict = find_blame(facts.kind, headline, more, self.group, self.rank)
        advice = _ADVICE.get(facts.kind, "look at what the ranks of that host printed")
        if facts.kind == "peer_failed" and not facts.is_fatal:
            advice = "correct the call on that rank"
        number = f" #{facts.seq}" if facts.seq else ""
        title = f'{facts.operation}{number} of group "{self.group}": {headline}'
        lines = [title, f"  here     {self._own_call(facts, entry)}", *more, f"  do       {advice}"]
        # What a program does about a lost rank must not depend on who has noticed the loss.
        error = PeerDiedError if verdict == "died" else _ERRORS.get(facts.kind, PeerFailedError)
        return error(
            "\n".join(lines),
            group=self.group,
            rank=self.rank,
            num_ranks=self.table.size,
            operation=facts.operation,
            sequence=facts.seq or None,
            culprits=culprits,
            verdict=verdict,
        )

    def for_others(self, error: PhalanxError, kind: str, pid: int) -> str:
        """Return what other hosts say about an error of this one: without what concerns only the call of this rank.

        If ranks of this host disagree, the call of this rank is one of those that the others compare with their own.
        """
        headline, *lines = str(error).split(f'of group "{self.group}": ', 1)[-1].splitlines()
        if kind == "timeout":  # the others know how long that was
            headline = headline.removeprefix("timed out after").partition(", ")[2] or headline
        kept, keeps = [headline], True
        for line in lines:
            if kind == "mismatch" and line.startswith("  here ") and " called " in line:
                kept.append(f"  differs  rank {self.rank} (pid {pid}) called {line.partition(' called ')[2]}")
            if line[2:11].strip():
                keeps = not line.startswith(("  here ", "  do "))
            if keeps:
                kept.append(line)
        return "\n".join(kept)

    def _own_call(self, facts: Trouble, entry: EntryFacts | None) -> str:
        called = ""
        if entry is not None:
            called = f" called {formatting.call(entry)}"
        elif facts.shape:
            called = f" called {facts.operation} {facts.dtype} {formatting.shape(facts.shape)}"
        where = f", {formatting.place(facts.location)}" if facts.location else ""
        return f"rank {self.rank} of {self.table.size}{called}{where}"

    def describe_late(self, answers: Sequence[HostRows], seq: int) -> str:
        """Say which ranks of other hosts have not come to an operation, and what they do; "" if that is unknown.

        Args:
            answers: What the launchers of all hosts see of the group.
            seq: The number of the operation.
        """
        late, lines = [], []
        for found, members in self._parts(answers):
            for row in found.rows:
                if row.arrived >= seq or members == self.here:
                    continue
                late.append(members[row.rank])
                lines += self._whereabouts(found, members, row)
        return "\n".join([f"{formatting.rank_list(late)}{_LATE}", *lines]) if late else ""

    def describe_left(self, answers: Sequence[HostRows]) -> str:
        """Say which rank of another host has closed the group; "" if that is unknown, or something else has happened.

        Args:
            answers: What the launchers of all hosts see of the group.
        """
        for found, members in self._parts(answers):
            rows, fault = found.rows, found.fault
            if members == self.here or any(row.state == "dead" for row in rows):
                continue
            left = [row.rank for row in rows if row.state == "left"]
            if fault is not None:  # those who left later did so because of it
                left = [fault.culprit] if fault.kind == "peer_left" else []
            if left:
                return f"rank {members[left[0]]} on host {found.host} closed the group"
        return ""

    def find_gone(self, answers: Sequence[HostRows]) -> list[int]:
        """Return the ranks of other hosts that have closed the group or ended, as far as it is known."""
        return [
            members[row.rank]
            for found, members in self._parts(answers)
            for row in found.rows
            if members != self.here and row.state in ("left", "dead")
        ]

    def _describe_peer(self, answers: Sequence[HostRows], peer: int) -> list[str]:
        """Return the lines about a rank of another host for whose message this one has waited; [] if it is unknown."""
        for found, members in self._parts(answers):
            if peer in members:
                return self._whereabouts(found, members, found.rows[members.index(peer)])
        return []

    def _whereabouts(self, found: HostRows, members: Sequence[int], row: RankFacts) -> list[str]:
        """Say what a rank of another host does instead, and where."""
        rows = list(found.rows)
        if row.mail is not None and 0 <= row.mail.root < len(members):  # it has the numbers of that host
            rows[row.rank] = row._replace(mail=row.mail._replace(root=members[row.mail.root]))
        what = Scene(self.group, 0, len(rows), rows).whereabouts(row.rank)
        lines = [f"  missing  rank {members[row.rank]} (pid {row.any_pid}) on host {found.host} {what}"]
        return lines + ([f"           is now at {found.places[row.rank]}"] if row.rank in found.places else [])

    def _parts(self, answers: Sequence[HostRows]) -> Sequence[tuple[HostRows, Sequence[int]]]:
        """Return the part of the group on each host with its ranks; [] if that is not clear."""
        # The world of each host has the same name as a world over hosts, but nobody calls anything there.
        used = [found for found in answers if any(row.arrived or row.messages for row in found.rows)]
        known = {found.host for found in used}
        # Of a host where nobody has called anything, one is as good as the other, unless ranks have left one of them.
        for found in sorted(answers, key=lambda found: all(row.state == "present" for row in found.rows)):
            if found.host not in known:
                used.append(found)
                known.add(found.host)
        used.sort(key=lambda found: found.host)
        if [len(found.rows) for found in used] != [len(host) for host in self.table.hosts]:
            return []
        return list(zip(used, self.table.hosts, strict=True))

    def _scene(
        self, rows: Sequence[RankFacts], entries: Sequence[EntryFacts | None], around: Surroundings, seq: int
    ) -> Scene:
        """Give this host's ranks their numbers in the whole group. The others are not late, as far as is known."""
        last = max((row.arrived for row in rows), default=0) + seq
        all_rows = [_unknown_row(rank, last) for rank in range(self.table.size)]
        all_entries: list[EntryFacts | None] = [None] * self.table.size
        for row in rows:
            mail = row.mail and row.mail._replace(root=self.rank_of(row.mail.root))
            rank = self.rank_of(row.rank)
            all_rows[rank] = row._replace(rank=rank, sleeps_for=self.rank_of(row.sleeps_for), mail=mail)
            if entries:
                all_entries[rank] = entries[row.rank]
        told = Surroundings(
            {self.rank_of(rank): stand for rank, stand in around.stands.items()},
            {self.rank_of(rank): wait for rank, wait in around.waits.items()},
            {self.rank_of(rank): state for rank, state in around.states.items()},
            around.cycle,
        )
        return Scene(self.group, self.rank, self.table.size, all_rows, all_entries if entries else (), told)


def _unknown_row(rank: int, arrived: int) -> RankFacts:
    return RankFacts(rank, 0, 0, 0, False, False, False, "present", -1, arrived, arrived, -1, None, None, None)

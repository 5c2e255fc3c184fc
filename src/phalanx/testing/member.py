"""A rank of a test as its crew sees it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.launch.connection import Connection, connected_pair
from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks, fork_rank
from phalanx.launch.rank import Rank
from phalanx.testing.output import OutputFiles, create_output_files
from phalanx.testing.stacks import answer_with_stacks


@dataclass(eq=False, kw_only=True)
class Member(Rank):
    """One rank of a crew.

    Attributes:
        connection: The crew's end of the connection to it.
        files: What it prints.
        may_end: Tells of an exit status whether that is no failure although the rank has reported nothing.
    """

    connection: Connection
    files: OutputFiles
    may_end: Callable[[int], bool] = lambda status: False

    def is_alive(self) -> bool:
        """Tell whether its process has not ended, also if nobody has heard of that yet."""
        return self.status is None and self.process is not None and self.process.is_running()

    def kill(self) -> None:
        """End it at once, and all that it has started."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)

    def begin_task(self) -> None:
        """Forget what happened in earlier tasks."""
        self.is_finished = self.is_consequence = False
        self.failed_at = None
        self.sent.clear()

    def close(self) -> None:
        """Let go of everything."""
        self.release()
        self.connection.close()
        self.files.close()


def fork_member(
    number: int,
    main: Callable[[Connection], None],
    starter: ForkedRanks,
    *,
    before: Iterable[Member],
    redirect: bool,
) -> Member:
    """Fork a rank that runs `main` and ends.

    Args:
        number: Which one.
        main: What it does.
        starter: What looks after it.
        before: Ranks forked before: the new one must not keep their connections open.
        redirect: Whether it prints into its files, not where this process does.
    """
    ours, theirs = connected_pair()
    files = create_output_files(number)

    def be_rank() -> None:
        for member in before:
            member.connection.close()
        ours.close()
        if redirect:
            files.redirect()
        answer_with_stacks(files)
        main(theirs)

    pid = fork_rank(be_rank)
    theirs.close()
    member = Member(number, connection=ours, files=files)
    starter.add(member, pid, ChildProcess(pid))
    return member

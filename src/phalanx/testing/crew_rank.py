"""A rank of a test as its crew sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.launch.connection import Connection, connected_pair
from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks, fork_rank
from phalanx.launch.rank import Rank
from phalanx.testing.output import OutputFiles, create_output_files
from phalanx.testing.stacks import answer_with_stacks


@dataclass(eq=False, kw_only=True)
class CrewRank(Rank):
    """One rank of a crew.

    Attributes:
        connection: The crew's end of the connection to it.
        files: The files with its output.
        may_end: Tells whether a rank that has reported nothing may end with this exit status.
    """

    connection: Connection
    files: OutputFiles
    may_end: Callable[[int], bool] = lambda status: False

    def is_alive(self) -> bool:
        """Tell whether its process runs, even if its starter has not reported the end yet."""
        return self.status is None and self.process is not None and self.process.is_running()

    def kill(self) -> None:
        """Kill it and all processes that it has started."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)

    def begin_task(self) -> None:
        """Forget what happened in earlier tasks."""
        self.is_finished = self.is_consequence = False
        self.failed_at = self.disagreement = None
        self.sent.clear()

    def close(self) -> None:
        """Close its connection, files and process handle."""
        self.release()
        self.connection.close()
        self.files.close()


def open_member(number: int) -> tuple[CrewRank, Connection]:
    """Make a member without a process, and the rank's end of its connection."""
    ours, theirs = connected_pair()
    try:
        return CrewRank(number, connection=ours, files=create_output_files(number)), theirs
    except BaseException:
        ours.close()
        theirs.close()
        raise


def fork_member(
    members: list[CrewRank], main: Callable[[Connection], None], starter: ForkedRanks, *, redirect: bool
) -> CrewRank:
    """Fork the next rank of a crew; it runs `main` and ends.

    Args:
        members: The ranks of the crew. The new one is added before it is forked, so that the crew's close() ends it
            even if this function raises, for example after Ctrl-C.
        main: The function that it runs.
        starter: The starter that watches it.
        redirect: Whether it prints into its own files, and not to the streams of this process.
    """
    member, theirs = open_member(len(members))
    members.append(member)

    def be_rank() -> None:
        for other in members:  # the new rank must not keep the crew's connections open, its own among them
            other.connection.close()
        if redirect:
            member.files.redirect()
        answer_with_stacks(member.files)
        main(theirs)

    with contextlib.closing(theirs):
        fork_rank(be_rank, lambda pid: watch_process(member, pid, starter))
    return member


def watch_process(member: CrewRank, pid: int, starter: ForkedRanks) -> None:
    """Give a new child process to its starter, or end it."""
    process = None
    try:
        process = ChildProcess(pid)
        starter.add(member, pid, process)
    except BaseException:  # such as no descriptor for it: nobody would know of the process
        if process is not None and member.process is None:
            process.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise

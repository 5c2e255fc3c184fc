"""A rank of a test as its crew sees it."""

from __future__ import annotations

import contextlib
import os
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
        self.failed_at = None
        self.sent.clear()

    def close(self) -> None:
        """Close its connection, files and process handle."""
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
        number: Its number.
        main: The function that it runs.
        starter: The starter that watches it.
        before: Ranks that were forked before; the new one must not keep their connections open.
        redirect: Whether it prints into its own files, and not to the streams of this process.
    """
    ours, theirs = connected_pair()
    with contextlib.ExitStack() as starting:
        starting.callback(theirs.close)
        on_failure = starting.enter_context(contextlib.ExitStack())
        on_failure.callback(ours.close)
        files = create_output_files(number)
        member = Member(number, connection=ours, files=files)
        on_failure.pop_all()
        on_failure.callback(member.close)

        def be_rank() -> None:
            for other in before:
                other.connection.close()
            ours.close()
            if redirect:
                files.redirect()
            answer_with_stacks(files)
            main(theirs)

        fork_rank(be_rank, lambda pid: _watch(member, pid, starter))
        on_failure.pop_all()
    return member


def _watch(member: Member, pid: int, starter: ForkedRanks) -> None:
    """Give a forked process to its starter, or end it."""
    try:
        starter.add(member, pid, ChildProcess(pid))
    except BaseException:  # such as no descriptor for it: nobody would know of the process
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise

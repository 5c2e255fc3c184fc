"""A rank's process with the methods of multiprocessing's that suites use, whichever way it was made."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.launch.waiting import is_readable
from phalanx.testing.line import Line, open_line
from phalanx.testing.member import FAILED_EXIT_CODE, Member
from phalanx.testing.output import create_output_files
from phalanx.testing.place import packed
from phalanx.testing.rank_report import RankReport
from phalanx.testing.unittest.own_stacks import report_test_failure
from phalanx.testing.unittest.skip_codes import TEST_ERROR_EXIT_CODE, meaning_of

if TYPE_CHECKING:
    from phalanx.testing.unittest.process_ranks import ProcessRanks


class ForkedProcess:
    """A rank that is forked when it is started."""

    def __init__(
        self,
        ranks: ProcessRanks,
        *,
        target: Callable[..., None],
        name: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._ranks = ranks
        self._call = lambda: target(*args, **(kwargs or {}))
        self.name = name
        self.member: Member | None = None

    def start(self) -> None:
        """Fork it."""
        self.member = self._ranks.fork(self._call)

    @property
    def _forked(self) -> Member:
        assert self.member is not None, "the process has not been started"
        return self.member

    @property
    def pid(self) -> int:
        """Its id."""
        return self._forked.pid

    @property
    def exitcode(self) -> int | None:
        """Its exit code, a negative signal number, or None while it runs."""
        member = self._forked
        if member.status is None and not member.is_running():
            member.reap()
        return exit_code(member.status)

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._forked.status is None:
            is_readable(self._forked.watch, timeout)

    def terminate(self) -> None:
        """Ask it to end."""
        if self._forked.status is None:
            self._forked.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        if self._forked.status is None:
            self._forked.signal(signal.SIGKILL)


def exit_code(status: int | None) -> int | None:
    """Turn a member's status into an exit code as multiprocessing has it."""
    return status if status is None or status < 256 else 256 - status


class AdoptedMember(Member):
    """A process that somebody else has started, through multiprocessing."""

    def __init__(self, rank: int, process: Any, line: Line | None = None) -> None:
        if line is None:
            line, other_end = open_line()
            other_end.close()
        super().__init__(rank, process.pid, os.pidfd_open(process.pid), line, create_output_files(rank))
        self._process = process

    def signal(self, number: int) -> None:
        """Send it a signal: it has no group of its own."""
        if self.status is None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reap(self) -> int | None:
        """Return how it ended."""
        if self.status is None:
            self._process.join()
            code = self._process.exitcode
            self.status = code if code is None or code >= 0 else 256 - code
        return self.status


def run_and_report(call: Callable[[], None], line: Line) -> None:
    """Do a rank's work and tell the crew what its exit code can't say: the exception, or why it skipped.

    Raises:
        SystemExit: With the rank's exit code.
    """
    try:
        call()
    except SystemExit as leaving:
        report = _explain(leaving)
        if report is not None:
            line.send(packed(report))
        if leaving.code is None:
            sys.exit(0)
        if not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
            sys.exit(FAILED_EXIT_CODE)
        raise
    except BaseException as error:
        line.send(packed(report_test_failure(error)))
        raise


def _explain(leaving: SystemExit) -> RankReport | None:
    """A rank ends from inside the handler of what was raised: the cause is there to be found."""
    cause = leaving.__context__
    if leaving.code == TEST_ERROR_EXIT_CODE and cause is not None:
        return report_test_failure(cause)
    if meaning_of(leaving.code) is not None and cause is not None and str(cause):
        return RankReport("skipped", headline=str(cause))
    return None

"""A rank's process with the methods of multiprocessing.Process that suites use, however it was started."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.launch.connection import Connection, connected_pair
from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks
from phalanx.launch.rank_process import FAILED_EXIT_CODE
from phalanx.launch.waiting import is_readable
from phalanx.testing.crew_rank import CrewRank
from phalanx.testing.output import create_output_files
from phalanx.testing.rank_report import RankReport
from phalanx.testing.taking_part import send_report
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
        self.member: CrewRank | None = None

    def start(self) -> None:
        """Fork it."""
        self.member = self._ranks.fork(self._call)

    @property
    def _forked(self) -> CrewRank:
        assert self.member is not None, "the process has not been started"
        return self.member

    @property
    def pid(self) -> int:
        """Its id."""
        return self._forked.pid

    @property
    def exitcode(self) -> int | None:
        """Its exit code, a negative signal number, or None while it runs."""
        if self._forked.status is None:
            self._ranks.hear()
        return exit_code(self._forked.status)

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._forked.status is None:
            is_readable(self._process.fileno(), timeout)

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._forked.status is None:
            self._process.signal(number)

    @property
    def _process(self) -> ChildProcess:
        process = self._forked.process
        assert isinstance(process, ChildProcess)
        return process


def exit_code(status: int | None) -> int | None:
    """Turn a member's status into an exit code of multiprocessing."""
    return status if status is None or status < 256 else 256 - status


class _AdoptedProcess(ChildProcess):
    """A process that other code has started through multiprocessing. It has no process group of its own."""

    def __init__(self, process: Any) -> None:
        super().__init__(process.pid, has_group=False)
        self._started = process

    def wait(self) -> int:
        """Wait for its end; return how it ended."""
        self._started.join()
        code = int(self._started.exitcode)
        return code if code >= 0 else 256 - code


def adopt_process(number: int, process: Any, starter: ForkedRanks, connection: Connection | None = None) -> CrewRank:
    """Watch a rank that multiprocessing has started."""
    if connection is None:
        connection, other_end = connected_pair()
        other_end.close()
    member = CrewRank(number, connection=connection, files=create_output_files(number))
    starter.add(member, process.pid, _AdoptedProcess(process))
    return member


def run_and_report(call: Callable[[], None], connection: Connection) -> None:
    """Do a rank's work, and report to the crew what an exit code can't express: the exception, or why it skipped.

    Raises:
        SystemExit: With the rank's exit code.
    """
    try:
        call()
    except SystemExit as leaving:
        report = _explain(leaving)
        if report is not None:
            send_report(report, connection)
        if leaving.code is None:
            sys.exit(0)
        if not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
            sys.exit(FAILED_EXIT_CODE)
        raise
    except BaseException as error:
        send_report(report_test_failure(error), connection)
        raise


def _explain(leaving: SystemExit) -> RankReport | None:
    """Describe why a rank exits: sys.exit() is called in an exception handler, so SystemExit has the cause."""
    cause = leaving.__context__
    if leaving.code == TEST_ERROR_EXIT_CODE and cause is not None:
        return report_test_failure(cause)
    if meaning_of(leaving.code) is not None and cause is not None and str(cause):
        return RankReport("skipped", headline=str(cause))
    return None

"""One test of the suite on freshly forked ranks.

Stricter than the suite's own driver: every rank's end counts, not only rank 0's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.conformance.suite import Suite
from phalanx.settings import set_environment

_UPSTREAM_ERROR = 10  # a rank's exit code when its test raised
_OWN_ERROR = 11
_PATIENCE_S = 3.0  # for the other ranks, after one has failed
# Upstream ends these ranks on purpose and does not look at how they end.
_CODES_UNCHECKED = ("test_ddp_has_finalized",)


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        name: The test.
        status: "passed", "skipped" or "failed".
        reason: Why, unless it passed.
        seconds: How long it took.
    """

    name: str
    status: str
    reason: str
    seconds: float


def run_test(suite: Suite, name: str, timeout_s: float) -> Outcome:
    """Run one test on the suite's number of ranks."""
    start = time.monotonic()
    reason = suite.reason_to_skip(name)
    if reason is not None:
        return Outcome(name, "skipped", reason, 0.0)
    folder = Path(tempfile.mkdtemp(prefix="phalanx-upstream-"))
    try:
        ranks = _Ranks(suite, name, folder)
        codes = ranks.wait(start + timeout_s)
        status, reason = _judge(suite, name, codes, ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(name, status, reason, time.monotonic() - start)


def _judge(suite: Suite, name: str, codes: dict[int, int], ranks: _Ranks) -> tuple[str, str]:
    values = set(codes.values())
    if values == {0} or (name in _CODES_UNCHECKED and _UPSTREAM_ERROR not in values and not ranks.late):
        return "passed", ""
    if codes[0] in suite.skip_codes and values <= {0, *suite.skip_codes}:
        return "skipped", suite.skip_codes[codes[0]]
    told = []
    for rank, code in sorted(codes.items()):
        if code == 0 or code in suite.skip_codes:
            continue
        if rank in ranks.late:
            told.append(f"rank {rank} did not end in time{ranks.last_words(rank)}")
        elif code < 0:
            told.append(f"rank {rank} was killed by {signal.Signals(-code).name}{ranks.last_words(rank)}")
        else:
            told.append(f"rank {rank} exited with {code}{ranks.last_words(rank)}")
    return "failed", "\n".join(told)


class _Ranks:
    """The ranks of one test."""

    def __init__(self, suite: Suite, name: str, folder: Path) -> None:
        self._folder = folder
        self._pids: dict[int, int] = {}
        self._pipes: dict[int, Any] = {}
        self.late: set[int] = set()
        for part in ("barrier", "test_dir", "init_dir"):
            (folder / part).mkdir()
        suite.module.INIT_METHOD = f"file://{folder}/init_dir/shared"
        set_environment(TEMP_DIR=str(folder), INIT_METHOD=suite.module.INIT_METHOD)
        suite.module.Barrier.barrier_id = 0
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(suite.world_size):
            ours, theirs = multiprocessing.Pipe()
            pid = os.fork()
            if pid == 0:
                self._be_rank(suite, name, rank, theirs)
            os.setpgid(pid, pid)
            theirs.close()
            self._pids[rank], self._pipes[rank] = pid, ours

    def _be_rank(self, suite: Suite, name: str, rank: int, pipe: Any) -> None:
        code = _OWN_ERROR
        try:
            log = os.open(self._folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            suite.case._run(rank, name, str(self._folder / "store"), pipe)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self, deadline: float) -> dict[int, int]:
        """Return every rank's exit code; a rank that is late is ended."""
        codes: dict[int, int] = {}
        poll = select.poll()
        descriptors = {os.pidfd_open(pid): rank for rank, pid in self._pids.items()}
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        while len(codes) < len(self._pids):
            left = deadline - time.monotonic()
            ended = poll.poll(max(left, 0) * 1000) if left > 0 else []
            if not ended and time.monotonic() >= deadline:
                self._end_late(set(self._pids) - set(codes))
                deadline = time.monotonic() + _PATIENCE_S
            for descriptor, _ in ended:
                rank = descriptors[descriptor]
                _, status = os.waitpid(self._pids[rank], 0)
                codes[rank] = os.waitstatus_to_exitcode(status)
                poll.unregister(descriptor)
                if codes[rank] < 0 or codes[rank] in (_UPSTREAM_ERROR, _OWN_ERROR):
                    deadline = min(deadline, time.monotonic() + _PATIENCE_S)
        for descriptor in descriptors:
            os.close(descriptor)
        for pid in self._pids.values():  # whatever a rank left behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return codes

    def _end_late(self, ranks: set[int]) -> None:
        for rank in ranks:
            if rank not in self.late:
                os.kill(self._pids[rank], signal.SIGUSR1)  # say where it stands
        time.sleep(0.2)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pids[rank], signal.SIGKILL)
        self.late |= ranks

    def last_words(self, rank: int) -> str:
        """Return what a rank said last: its traceback, or the end of its output."""
        text = ""
        with contextlib.suppress(EOFError, OSError):
            if self._pipes[rank].poll():
                message = self._pipes[rank].recv()
                text = str(getattr(message, "traceback", message))
        if not text:
            text = (self._folder / f"log.{rank}").read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-25:]
        return ":\n      " + "\n      ".join(lines) if lines else ""

"""The driver as the test sees it: asked for one case after the other, replaced when it hangs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.system_calls.cases import ERRORS, Case
from tests.system_calls.page import build_library, call_number_in, preloading

_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_CASE_S = 110.0


class Team:
    """A process that runs cases.

    Args:
        folder: For its files.
        driver: The module that it runs, and its arguments after the folder.
    """

    def __init__(self, folder: Path, *driver: str) -> None:
        self._folder = folder
        self._driver = driver
        self._library = build_library(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the team

    def last_words(self) -> str:
        """Return the end of what was printed to stderr."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        return self._errors.read().decode(errors="replace")

    def counts(self, role: int) -> dict[str, int]:
        """Return how often a process of this role makes each call when none fails."""
        result = self.run(Case(role, "", 0, 0))
        assert result is not None
        assert not result["error"]["kind"], result
        return {call: result["counts"][call_number_in(self._library, call)] for call in ERRORS}

    def run(self, case: Case) -> dict[str, Any] | None:
        """Run a case; None when there is no answer."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps(case.facts()).encode() + b"\n")
        process.stdin.flush()
        answer = self._read(process, _CASE_S)
        if answer is None:
            self._stop()
            return None
        result: dict[str, Any] = json.loads(answer)
        return result

    def close(self) -> None:
        """End it."""
        self._stop()
        self._errors.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._driver[0], str(self._folder), *self._driver[1:]],
                env=preloading(self._library, self._folder),
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
            )
            assert self._read(self._process, _START_S) == b"ready\n"
        return self._process

    def _read(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout.fileno(), select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(timeout_s * 1000):
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return None
            line += part
        return line

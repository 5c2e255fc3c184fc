"""The ranks of one contender, kept waiting for orders so that contenders can take turns.

A waiting rank blocks in a read: it takes no processor time from the one that is being measured.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from phalanx.engine import usable_cores
from phalanx.launch.meeting import is_same_user
from phalanx.launch.spawn import spawn
from phalanx_tools.bench.cases import Case
from phalanx_tools.bench.mpi_environments import mpi_command
from phalanx_tools.bench.worker_torch import serve

_START_TIMEOUT_S = 120.0
_ORDER_TIMEOUT_S = 300.0


class Team:
    """Ranks of one contender. Use as a context manager."""

    def __init__(self, contender: str, num_ranks: int) -> None:
        self.contender = contender
        self.version = ""
        self._num_ranks = num_ranks
        self._address = f"phalanx-bench-{secrets.token_hex(8)}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind("\0" + self._address)
        self._server.listen(num_ranks)
        self._server.settimeout(0.2)
        self._streams: dict[int, TextIO] = {}
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Team:
        if self.contender in ("openmpi", "mpich"):
            worker = str(Path(__file__).with_name("worker_mpi.py"))
            command = [*mpi_command(self.contender, self._num_ranks, usable_cores()), worker, self._address]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        else:
            self._thread = threading.Thread(target=self._spawn, daemon=True)
            self._thread.start()
        for _ in range(self._num_ranks):
            self._admit()
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        self._server.close()
        if self._process is not None:
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(30)
        self._folder.cleanup()

    def _spawn(self) -> None:
        store = str(Path(self._folder.name) / "store")
        try:
            spawn(serve, ranks=self._num_ranks, args=(self.contender, self._address, store))
        except Exception as error:
            self._failure = str(error)

    def _admit(self) -> None:
        connection = self._accept()
        connection.settimeout(_ORDER_TIMEOUT_S)
        stream = connection.makefile("rw")
        connection.close()  # the stream holds it
        hello = json.loads(stream.readline())
        self.version = hello["version"]
        self._streams[hello["rank"]] = stream

    def _accept(self) -> socket.socket:
        """Wait for a rank, but not for ranks that have failed."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and not self._failure:
            if self._process is not None and self._process.poll() is not None:
                break
            try:
                connection = self._server.accept()[0]
            except TimeoutError:
                continue
            if is_same_user(connection):
                return connection
            connection.close()
        reason = self._failure
        if self._process is not None and self._process.stderr is not None:
            self._process.kill()
            reason = self._process.stderr.read()
        raise OSError(f"{self.contender} did not start: {reason.strip()[-500:]}")

    def _order(self, **order: Any) -> list[dict[str, Any]]:
        for stream in self._streams.values():
            stream.write(json.dumps(order) + "\n")
            stream.flush()
        return [self._answer(rank) for rank in range(self._num_ranks)]

    def _answer(self, rank: int) -> dict[str, Any]:
        line = self._streams[rank].readline()
        if not line:
            if self._thread is not None:
                self._thread.join(10)
            raise RuntimeError(f"rank {rank} of {self.contender} ended: {self._failure or 'see its output'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def prepare(self, case: Case) -> bool:
        """Allocate, run once, and tell whether every rank got the right result."""
        return all(
            answer["correct"] for answer in self._order(do="prepare", operation=case.operation, bytes=case.bytes)
        )

    def time(self, iterations: int) -> float:
        """Return the seconds that the slowest rank needed for that many operations."""
        return max(float(answer["elapsed_s"]) for answer in self._order(do="time", iterations=iterations))

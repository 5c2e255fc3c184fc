"""The caller's side of the zygote, which the first spawn() starts and which lives until this process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx.errors import InternalError
from phalanx.scarcity import in_words
from phalanx.settings import copy_environment, environment_without_set_up

if TYPE_CHECKING:
    from phalanx.launch.rank_process import StartRequest

# Libraries that start threads when loaded, and how to stop them: a process with threads can't be forked safely.
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_PROGRAM = "import sys; from phalanx.launch.zygote import main; main(int(sys.argv[1]))"


_END_S = 1.0
_START_S = 120.0  # for importing torch, and with pytest also the tests


class NotForkableError(InternalError):
    """A module that the zygote has imported has started threads or initialised CUDA."""


class ZygoteClient:
    """A running zygote. Threads may share it.

    Args:
        program: The Python code to run; it gets the number of its socket in sys.argv[1].
        arguments: Further arguments in sys.argv.
        environment: Its variables; by default those of this process.
        output: A descriptor for its output; by default the streams of this process.
        is_apart: Whether it has its own process group, so that Ctrl-C in the terminal does not reach it.

    Raises:
        OSError: It could not be started.
    """

    def __init__(
        self,
        program: str = _PROGRAM,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
        is_apart: bool = False,
    ) -> None:
        self._lock = threading.Lock()  # guards the control socket: one request at a time goes through it
        self._owner = os.getpid()
        try:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program, str(theirs.fileno()), *arguments],
                    pass_fds=[theirs.fileno()],
                    env={**(copy_environment() if environment is None else environment), **_SINGLE_THREADED},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=0 if is_apart else None,
                )
        except OSError as error:
            if hasattr(self, "_control"):
                self._control.close()
            raise in_words(error, "the process that ranks are forked from could not be started") from error
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that can be read when it is ready, or has ended."""
        return self._control.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it can fork ranks."""
        return self._is_ready

    def is_usable(self) -> bool:
        """Tell whether it still runs and belongs to this process."""
        return self._owner == os.getpid() and self._process.poll() is None and not self._has_hung_up()

    def _has_hung_up(self) -> bool:
        # The kernel closes the files of a killed process first, so its ranks may end before the zygote has ended.
        looks = select.poll()
        looks.register(self._control, 0)
        return bool(looks.poll(0))

    def exit_code(self) -> int | None:
        """Return its exit code, or a negative signal number, if its socket is closed; None if it still runs."""
        try:
            return self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return None

    def await_ready(self) -> None:
        """Return when it can fork ranks.

        Raises:
            InternalError: The zygote could not be started, or can't be forked (NotForkableError).
        """
        with self._lock:
            if not self._is_ready:
                self._read_greeting()

    def start(self, request: StartRequest, descriptors: list[int]) -> None:
        """Ask the zygote to fork ranks.

        Raises:
            InternalError: The zygote could not be started, or can't be forked (NotForkableError).
            OSError: The request could not be sent to it.
        """
        from phalanx.launch.zygote import (
            send_request,  # imported here, because a launcher starts the zygote before it imports anything else
        )

        self.await_ready()
        try:
            with self._lock:
                send_request(self._control, request, descriptors)
        except OSError as error:
            raise in_words(error, f"{request.num_ranks} ranks could not be asked for") from error

    def close(self, *, at_once: bool = False) -> None:
        """End it and its ranks; with `at_once` even while it imports torch."""
        self._control.close()
        if self._owner == os.getpid():
            if at_once:
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)

    def _read_greeting(self) -> None:
        self._control.settimeout(_START_S)
        try:
            greeting = self._control.recv(8)
        except TimeoutError:
            raise InternalError(f"the process that ranks are forked from was not ready in {_START_S:.0f} s") from None
        finally:
            self._control.settimeout(None)
        if len(greeting) < 8:
            raise InternalError("the process that ranks are forked from did not start; see its output above")
        (num_threads,) = struct.unpack("!Q", greeting)
        if num_threads != 1:
            why = f"has {num_threads} threads" if num_threads else "has initialised CUDA"
            raise NotForkableError(f"the process that ranks are forked from {why}, so it can't be forked")
        self._is_ready = True


_lock = threading.Lock()  # guards _shared
_shared: list[ZygoteClient] = []


def shared_zygote() -> ZygoteClient:
    """Return this process's zygote; start it if there is none. There is only one, because it has to import torch."""
    with _lock:
        if not _shared or not _shared[0].is_usable():
            for dead in _shared:
                dead.close()
            _shared[:] = [ZygoteClient(environment=environment_without_set_up())]  # each rank sets up its own
            atexit.unregister(_close_shared)
            atexit.register(_close_shared)
        return _shared[0]


def _close_shared() -> None:
    for client in _shared:
        client.close()

"""A process that asks probes, as the doctor sees it: a pipe for answers, and one for what it writes on the side."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_PROGRAM = (
    "import sys; from phalanx.doctor.asking import main; "
    "main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))"
)
_PART_BYTES = 65536
_MOST_PARTS = 16
_STDERR_BYTES = 8192  # how much is kept
_END_S = 1.0  # between the end of the answers and that of the process
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


class ProbeProcess:
    """A running process. Whoever makes it calls end().

    Args:
        home: The module of the topic it asks.
        first: The probe it begins with.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, home: str, first: int) -> None:
        self._reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, home, str(first), str(writer), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[writer],
                start_new_session=True,  # whatever it starts can be ended with it
            )
        except OSError:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)
        assert self._process.stderr is not None
        self._side = self._process.stderr
        self._said = b""
        self._unread = b""

    def descriptors(self) -> list[int]:
        """Return what to wait for until something can be read."""
        return [self._reader] if self._side.closed else [self._reader, self._side.fileno()]

    def read_answers(self) -> list[bytes] | None:
        """Return the lines that have come, without waiting for more; None at their end."""
        if not _is_readable(self._reader):
            return []
        part = os.read(self._reader, _PART_BYTES)
        if not part:
            return None
        *lines, self._unread = (self._unread + part).split(b"\n")
        return lines

    def read_side(self) -> None:
        """Read what has been written on the side, without waiting for more."""
        for _ in range(_MOST_PARTS):  # it may write faster than this reads
            if self._side.closed or not _is_readable(self._side.fileno()):
                return
            part = os.read(self._side.fileno(), _PART_BYTES)
            self._said = (self._said + part)[-_STDERR_BYTES:]
            if not part:
                self._side.close()

    def take_last_words(self) -> str:
        """Return the last line that was written on the side since this was called last, or ""."""
        self.read_side()
        lines = self._said.decode(errors="replace").strip().splitlines()
        self._said = b""
        return lines[-1].strip()[:200] if lines else ""

    def how_it_ended(self) -> str:
        """Say how it ended, once its answers have."""
        deadline = time.monotonic() + _END_S
        # It stays a zombie until end(): until then nobody else can have its number, which is also that of its group.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (found := os.waitid(os.P_PID, self._process.pid, look)) is None:
            if time.monotonic() > deadline:
                return "it closed its pipe"
            time.sleep(0.002)
        if found.si_code == os.CLD_EXITED:
            return f"its process ended with exit code {found.si_status}"
        how = f"killed by {_SIGNAL_NAMES.get(found.si_status, f'signal {found.si_status}')}"
        return f"{how}: a seccomp filter forbids the call" if found.si_status == signal.SIGSYS else how

    def end(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):  # it has not come so far as to have a group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._side.close()
        os.close(self._reader)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()  # unlike select(), for numbers of any size
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))

"""Control groups of this machine, made for a test and removed after it; of version 1 or 2, whichever is mounted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_REMOVE_S = 5.0


class ControlGroup:
    """A group below this process's own."""

    def __init__(self, folder: Path, *, is_second_version: bool) -> None:
        self.folder = folder
        self._is_second_version = is_second_version

    def enter(self) -> None:
        """Move the calling process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def limit_cores(self, cores: float) -> None:
        """Grant it the time of some cores."""
        if self._is_second_version:
            (self.folder / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
        else:
            (self.folder / "cpu.cfs_period_us").write_text("100000")
            (self.folder / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))

    def limit_memory(self, size_bytes: int) -> None:
        """Grant it some memory."""
        name = "memory.max" if self._is_second_version else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(size_bytes))

    def limit_processes(self, count: int) -> None:
        """Let it have that many processes and threads."""
        (self.folder / "pids.max").write_text(str(count))

    def most_used_bytes(self) -> int:
        """Return how much memory it has had at most, cache included."""
        name = "memory.peak" if self._is_second_version else "memory.max_usage_in_bytes"
        return int((self.folder / name).read_text())


@contextlib.contextmanager
def new_group(controller: str, name: str) -> Iterator[ControlGroup]:
    """Make a group with a controller below this process's own; skip the test where that is not allowed."""
    parent, is_second_version = _own_folder(controller)
    folder = parent / f"phalanx-{name}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if is_second_version and not any(folder.glob(f"{controller}.*")):
            pytest.skip(f"the controller {controller} is not given to groups below {parent}")
        yield ControlGroup(folder, is_second_version=is_second_version)
    finally:
        _remove(folder)


def _own_folder(controller: str) -> tuple[Path, bool]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(f"/sys/fs/cgroup/{controllers}{path}"), False
    return Path("/sys/fs/cgroup") / path.strip("/"), True


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            folder.rmdir()
        except OSError:  # its last process is not quite gone
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return

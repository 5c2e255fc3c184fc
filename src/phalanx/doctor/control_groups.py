"""The limits that control groups set, of version 1 and 2, on this process's group or on any above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 2**60  # version 1 writes a huge number where version 2 writes "max"


class ControlGroups:
    """The control groups of a process.

    Args:
        process: Its folder in /proc.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        paths = dict[str, str]()  # by controller; "" is version 2
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths |= dict.fromkeys(controllers.split(","), path)
        self._folders = dict[str, list[Path]]()
        for line in (process / "mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            root, place = mount.split()[3:5]
            for controller in {"cgroup2": [""], "cgroup": kind.split()[-1].split(",")}.get(kind.split()[0], []):
                if controller in paths:
                    self._folders[controller] = list(_upwards(Path(place), root, paths[controller]))

    def memory_limit_bytes(self) -> int | None:
        """Return the smallest limit of memory, or None."""
        return _smallest(self._numbers("memory", "memory.max", "memory.limit_in_bytes"))

    def memory_left_bytes(self) -> int | None:
        """Return how much memory the limits leave, or None."""
        limits = self._numbers("memory", "memory.max", "memory.limit_in_bytes")
        used = dict(self._numbers("memory", "memory.current", "memory.usage_in_bytes"))
        return _smallest((folder, max(0, limit - used.get(folder, 0))) for folder, limit in limits)

    def processes_left(self) -> int | None:
        """Return how many more processes and threads may be started, or None."""
        used = dict(self._numbers("pids", "pids.current", "pids.current"))
        limits = self._numbers("pids", "pids.max", "pids.max")
        return _smallest((folder, max(0, limit - used.get(folder, 0))) for folder, limit in limits)

    def cores(self) -> float | None:
        """Return how many cores' time the group may use, or None."""
        quotas = []
        for folder in self._folders.get("", []):
            text = _read(folder / "cpu.max").split()
            if len(text) == 2 and text[0].isdigit():
                quotas.append(int(text[0]) / int(text[1]))
        for folder in self._folders.get("cpu", []):
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit():  # -1 is no quota
                quotas.append(int(quota) / int(period))
        return min(quotas, default=None)

    def _numbers(self, controller: str, name: str, name_in_version_1: str) -> list[tuple[Path, int]]:
        places = [(folder, folder / name) for folder in self._folders.get("", [])]
        places += [(folder, folder / name_in_version_1) for folder in self._folders.get(controller, [])]
        found = [(folder, _read(file)) for folder, file in places]
        return [(folder, int(text)) for folder, text in found if text.isdigit()]


def _upwards(place: Path, root: str, path: str) -> Iterator[Path]:
    """Yield the group's folder and those above it, as far as they are mounted here."""
    inside = path.removeprefix(root) if root != "/" else path
    folder = place / inside.strip("/")
    yield folder
    while folder != place:
        folder = folder.parent
        yield folder


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # the group at the root has no such file
        return ""


def _smallest(numbers: Iterator[tuple[Path, int]] | list[tuple[Path, int]]) -> int | None:
    return min((number for _, number in numbers if number < _UNLIMITED), default=None)

"""What `@pytest.mark.ranks(...)` asks for, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.engine import MAX_RANKS
from phalanx.errors import UsageError
from phalanx.launch.rank_devices import RankGpus
from phalanx.testing.kinds import BACKENDS, KINDS, Backend, Kind
from phalanx.testing.virtual_gpus import read_gpus, read_own_marker

_OPTIONS = ("kind", "timeout", "backend", "device", "gpus", "races")
_EXAMPLE = "@pytest.mark.ranks(4) or @pytest.mark.ranks([1, 2, 4])"


@dataclass(frozen=True)
class Defaults:
    """The defaults of a marker's options, from the command line and the ini file.

    Attributes:
        kind: How ranks are run.
        timeout_s: How long a test may take.
        backend: The backend of the groups.
        device: The type of the `device` fixture: "cpu" or "cuda".
    """

    kind: Kind = "process"
    timeout_s: float = 60.0
    backend: Backend = "phalanx"
    device: str = "cpu"


@dataclass(frozen=True)
class Plan:
    """One test on one number of ranks of one kind; `gpus` are virtual ones."""

    num_ranks: int
    kind: Kind
    timeout_s: float
    backend: Backend
    device: str
    gpus: RankGpus | None = None

    @property
    def is_on_real_gpus(self) -> bool:
        """Whether ranks use GPUs that this machine must have."""
        return self.device == "cuda" and self.gpus is None

    def label(self, *, with_kind: bool) -> str:
        """Return its name for a test id."""
        return f"{self.kind}-{self.num_ranks}" if with_kind else f"ranks-{self.num_ranks}"


def read_marker(args: tuple[Any, ...], kwargs: Mapping[str, Any], defaults: Defaults) -> list[Plan]:
    """Turn the arguments of the marker into plans, one per kind and number of ranks.

    Raises:
        UsageError: They make no sense.
    """
    unknown = sorted(set(kwargs) - {*_OPTIONS})
    if unknown or len(args) != 1:
        problem = f"takes no {', '.join(unknown)}" if unknown else f"takes one number of ranks, got {len(args)}"
        raise UsageError(f"@pytest.mark.ranks {problem}; write {_EXAMPLE}; options are {', '.join(_OPTIONS)}")
    sizes = [_size(value) for value in _listed(args[0], "ranks")]
    kinds = [_one_of(value, KINDS, "kind") for value in _listed(kwargs.get("kind", defaults.kind), "kind")]
    timeout_s = _timeout(kwargs, defaults, "@pytest.mark.ranks")
    is_virtual = kwargs.get("gpus") is not None
    usual_backend = "nccl" if is_virtual and defaults.backend == "phalanx" else defaults.backend
    backend = _one_of(kwargs.get("backend", usual_backend), BACKENDS, "backend")
    usual_device = "cuda" if backend == "nccl" or is_virtual else defaults.device
    device = _one_of(kwargs.get("device", usual_device), ("cpu", "cuda"), "device")
    gpus = {size: read_gpus(kwargs, size) for size in sizes}
    return [Plan(size, kind, timeout_s, backend, device, gpus[size]) for kind in kinds for size in sizes]


def read_gpus_marker(args: tuple[Any, ...], kwargs: Mapping[str, Any], defaults: Defaults) -> Plan:
    """Turn the arguments of @pytest.mark.virtual_gpus into a plan: one process that has all devices.

    Raises:
        UsageError: They make no sense.
    """
    gpus = read_own_marker(args, kwargs)
    return Plan(1, "process", _timeout(kwargs, defaults, "@pytest.mark.virtual_gpus"), "nccl", "cuda", gpus)


def _timeout(kwargs: Mapping[str, Any], defaults: Defaults, marker: str) -> float:
    timeout_s = kwargs.get("timeout", defaults.timeout_s)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise UsageError(f"{marker}: timeout is {timeout_s!r}; give a positive number of seconds")
    return float(timeout_s)


def _listed(value: Any, what: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return [value]
    values = list(value)
    if not values or len(set(map(repr, values))) != len(values):
        problem = "is empty" if not values else "names something twice"
        raise UsageError(f"@pytest.mark.ranks: the list of {what} {values!r} {problem}; write {_EXAMPLE}")
    return values


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANKS:
        raise UsageError(
            f"@pytest.mark.ranks({value!r}): the number of ranks must be a whole number from 1 to {MAX_RANKS}; "
            f"write {_EXAMPLE}"
        )
    return value


def _one_of(value: Any, choices: tuple[Any, ...], what: str) -> Any:
    if value not in choices:
        raise UsageError(f"@pytest.mark.ranks: {what} is {value!r}; give one of {', '.join(choices)}")
    return value

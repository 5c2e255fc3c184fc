"""What the user asks `phalanx run` to do, with valid values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.engine import MAX_RANKS, usable_cores
from phalanx.errors import UsageError
from phalanx.jobs.program import Program
from phalanx.jobs.real_gpus import choose_gpus
from phalanx.real_gpus.discovery import find_gpus, visible_gpus
from phalanx.settings import torch_threads, virtual_gpus

if TYPE_CHECKING:
    from phalanx.launch.hosts.plan import HostsPlan

_MOST_RANKS_BY_DEFAULT = 4  # where there are no GPUs: enough to see how a program behaves on several ranks


@dataclass(frozen=True)
class Job:
    """What to run, and how.

    Attributes:
        program: What every rank runs.
        num_ranks: The number of ranks.
        environment: The environment variables of all ranks.
        num_threads: The number of torch threads in a rank.
        grace_s: How long to wait after each signal when ranks are ended.
        name: The name of the job.
        timeout_s: How long the job may take; None for no limit.
        max_restarts: How often ranks are started again after a failure.
        log_folder: The folder for the output of ranks, or None.
        trace_folder: The folder for traces, or None.
        warn_after_s: How long a rank may wait for another before there is a warning; 0 for never.
        is_live: Whether to show the table of ranks.
        rank_variables: The variables that differ between ranks, for each rank; empty if there are none.
        note: A line to print before ranks start, or "".
        is_full_trace: Whether to print every traceback of every rank, as the rank writes it.
        hosts: Where the hosts of the job meet; None if there is only this one.
    """

    program: Program
    num_ranks: int
    environment: dict[str, str]
    num_threads: int
    grace_s: float
    name: str
    timeout_s: float | None = None
    max_restarts: int = 0
    log_folder: Path | None = None
    trace_folder: Path | None = None
    warn_after_s: float = 30.0
    is_live: bool = False
    rank_variables: tuple[dict[str, str], ...] = ()
    note: str = ""
    is_full_trace: bool = False
    hosts: HostsPlan | None = None


def check_num_ranks(num_ranks: int) -> None:
    """Refuse an invalid number of ranks.

    Raises:
        UsageError: It is less than 1, or too large.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"-n {num_ranks} is not possible; give 1 to {MAX_RANKS} ranks")


def choose_num_ranks(asked: int | str | None, gpus: str | None, environment: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of ranks, and a line that says why; the line is "" if the user gave a number.

    Args:
        asked: A number, "gpu", "cpu" or "auto", as with torchrun; None if the user did not say.
        gpus: The value of --gpus, or None.
        environment: The variables of the ranks.

    Raises:
        UsageError: The number is not possible, or ranks are to be as many as GPUs and there are none.
    """
    if isinstance(asked, int):
        check_num_ranks(asked)
        return asked, ""
    num_gpus, what = (0, "") if asked == "cpu" else _count_gpus(gpus, environment)
    if num_gpus:
        return _explain(num_gpus, f"one for each {what}")
    if asked == "gpu":
        raise UsageError("--nproc-per-node gpu: ranks see no GPU here; give a number, or --virtual-gpus 8")
    if asked is not None:
        return _explain(usable_cores(), "one for each core")
    reason = f"as no GPU is visible: one for each core, up to {_MOST_RANKS_BY_DEFAULT}"
    return _explain(min(usable_cores(), _MOST_RANKS_BY_DEFAULT), reason)


def _count_gpus(spec: str | None, environment: Mapping[str, str]) -> tuple[int, str]:
    num_virtual = virtual_gpus(environment)
    if num_virtual:
        return num_virtual, "virtual GPU"
    if spec is not None:
        return len(choose_gpus(spec.strip(), environment, find_gpus())), "GPU of --gpus"
    return len(visible_gpus(find_gpus(), environment)), "visible GPU"


def _explain(num_ranks: int, reason: str) -> tuple[int, str]:
    check_num_ranks(num_ranks)
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    return num_ranks, f"starting {ranks}, {reason} (-n sets another number)"


def default_threads(num_ranks: int) -> int:
    """Return the number of torch threads of a rank: OMP_NUM_THREADS if it is set, or else its share of the cores."""
    return torch_threads(max(1, usable_cores() // num_ranks))


def make_trace_folder(folder: Path) -> Path:
    """Make the folder for traces.

    Raises:
        UsageError: It can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--trace {folder}: {error.strerror}") from None
    return folder.absolute()

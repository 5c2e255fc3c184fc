"""What the user asks `phalanx run` to do, with valid values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.engine import MAX_RANKS, usable_cores
from phalanx.errors import UsageError
from phalanx.jobs.program import Program
from phalanx.settings import torch_threads


@dataclass(frozen=True)
class Job:
    """What to run, and how.

    Attributes:
        program: What every rank runs.
        num_ranks: The number of ranks.
        environment: The environment variables of all ranks.
        num_threads: The number of torch threads in a rank.
        grace_s: How long to wait at each step when ranks are ended.
        name: The name of the job.
        timeout_s: How long the job may take; None for no limit.
        max_restarts: How often ranks are started again after a failure.
        log_folder: The folder for the output of ranks, or None.
        trace_folder: The folder for traces, or None.
        warn_after_s: How long a rank may wait for another before there is a warning; 0 for never.
        is_live: Whether to show the table of ranks.
        rank_variables: The variables that differ between ranks, for each rank; empty if there are none.
        note: A line to print before ranks start, or "".
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


def check_num_ranks(num_ranks: int) -> None:
    """Refuse an invalid number of ranks.

    Raises:
        UsageError: It is less than 1, or too large.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"-n {num_ranks} is not possible; give 1 to {MAX_RANKS} ranks")


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

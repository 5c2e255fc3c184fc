"""A job as the user asked for it, checked."""

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
        num_ranks: How many there are.
        environment: Variables for all ranks.
        num_threads: Threads that torch uses in a rank.
        grace_s: How long ranks may take at each step of being ended.
        name: What the job is called.
        timeout_s: How long it may take; no limit when None.
        max_restarts: How often ranks are started again after a failure.
        log_folder: Where all output is kept, or None.
        trace_folder: Where ranks write what they do, or None.
        warn_after_s: How long ranks may wait for another before it is told; 0 for never.
        is_live: Whether to show the ranks on a terminal, as they run.
        rank_variables: Variables of each rank that others have not, or not so; empty when there are none.
        note: What to say before ranks start, or "".
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
    """Refuse a number of ranks that can't be.

    Raises:
        UsageError: It is less than 1, or too many.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"-n {num_ranks} is not possible; give 1 to {MAX_RANKS} ranks")


def default_threads(num_ranks: int) -> int:
    """Return how many threads a rank gets: OMP_NUM_THREADS if it is set, else its share of the cores."""
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

"""Faults of torch's tests themselves that fewer and slower cores than theirs bring to light, and their cures.

Each cure leaves what a test checks as it is.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

_LEAST_RANKS = 3  # tests of a group within the group take ranks 1 and 2


def cure_decorators(common_distributed: Any, backend: str, world_size: int) -> None:
    """Correct what has to be correct before the suite is imported."""
    if backend == "mpi" and world_size < _LEAST_RANKS:
        # Upstream takes it that MPI never has two ranks, and lets these tests run into an error.
        common_distributed.skip_if_small_worldsize = _skip_always


def cure_suite(distributed_test: Any) -> None:
    """Correct the loaded suite."""
    # One test listens at this port plus one. It is fixed, and two suites may run at once.
    distributed_test.MASTER_PORT = _free_port() - 1
    distributed_test._rank_temp_file = _kept_until_all_are_done(distributed_test._rank_temp_file)


def _skip_always(function: Any) -> Any:
    function.__unittest_skip__ = True
    function.__unittest_skip_why__ = "Skipped due to small world size."
    return function


def _kept_until_all_are_done(shared_file: Any) -> Any:
    """Rank 0 removes the file as soon as it is done itself, and another may not have opened it yet."""

    @contextlib.contextmanager
    def patient() -> Iterator[str]:
        import torch.distributed as dist

        with shared_file() as name:
            yield name
            dist.barrier()

    return patient


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""What is measured: operations, sizes, and what a size means.

`bytes` is the largest tensor a rank holds in the operation (its output in all_gather, its input in reduce_scatter), so
rows of one size move comparable amounts. Below one element per rank, every rank has one.
"""

from __future__ import annotations

from dataclasses import dataclass

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "send_recv")
SIZES = (4, 4096, 65536, 1 << 20, 16 << 20, 64 << 20)
# phalanx_torch: the same engine, called through torch.distributed. copy: no communication at all; every rank copies as
# many bytes as the operation must at least write on it, all at once. torch_alone: none either; torch's own calls, over
# a backend in C++ that meets nobody: see worker_torch.
CONTENDERS = ("phalanx", "phalanx_torch", "gloo", "openmpi", "mpich", "copy", "torch_alone")
CALL_BYTES = 65536  # up to which it is the call that costs, and not the bytes
TRAINING = ("local_step", "silent_ddp_step", "ddp_step", "fsdp_step")
TRAINING_CONTENDERS = ("phalanx_torch", "gloo")
ITEM_BYTES = 4


@dataclass(frozen=True)
class Case:
    """One row of the table, for all contenders."""

    operation: str
    ranks: int
    bytes: int


@dataclass(frozen=True)
class Sample:
    """One contender's times for one case, in seconds per operation."""

    case: Case
    contender: str
    times_s: tuple[float, ...]
    is_correct: bool


def all_cases(operations: tuple[str, ...], ranks: tuple[int, ...], sizes: tuple[int, ...]) -> list[Case]:
    """Return the cases in the order of the table; a barrier has no size."""
    cases = []
    for num_ranks in ranks:
        for operation in operations:
            for size in sizes if operation != "barrier" else (0,):
                if operation == "send_recv" and num_ranks % 2:
                    continue
                cases.append(Case(operation, num_ranks, size))
    return cases

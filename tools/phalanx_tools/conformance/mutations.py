"""Engines that are wrong on purpose: a suite that still passes on them would prove nothing.

What an operation should write is written into a copy, so that the caller's tensor keeps its old content.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: What the user calls it.
        about: What is wrong.
        operations: The engine's calls that it changes.
        least_noticed: How many tests of the whole suite notice it at least, as NCCL on two ranks.
    """

    name: str
    about: str
    operations: tuple[str, ...]
    least_noticed: int


_ADDING = ("all_reduce", "all_reduce_coalesced")
_RECEIVING = (
    *_ADDING, "reduce", "broadcast", "all_gather", "all_gather_single", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "all_to_all", "all_to_all_single", "recv",
)  # fmt: skip
MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation("no-sum", "all_reduce does not add", _ADDING, 33),
        Mutation("no-data", "nothing that is received arrives", _RECEIVING, 108),
    )
}


def install(name: str) -> Mutation:
    """Make every group of this process wrong from now on, and return how.

    Raises:
        UsageError: There is no such mutation.
    """
    if name not in MUTATIONS:
        raise UsageError(f'there is no mutation "{name}"; give one of {", ".join(MUTATIONS)}')
    from phalanx.groups.shared_memory import SharedMemoryGroup

    mutation = MUTATIONS[name]
    for operation in mutation.operations:
        setattr(SharedMemoryGroup, operation, _into_a_copy(getattr(SharedMemoryGroup, operation)))
    return mutation


def _into_a_copy(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def wrong(self: Any, written: Any, *args: Any, **kwargs: Any) -> Any:
        return real(self, _copy(written), *args, **kwargs)

    return wrong


def _copy(written: Any) -> Any:
    if written is None:
        return None
    return [_copy(one) for one in written] if isinstance(written, (list, tuple)) else written.clone()

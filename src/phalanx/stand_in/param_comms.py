"""The sizes and ranks of collectives, which torch's profiler records as "record_param_comms" for NCCL."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phalanx.collectives import Group
from phalanx.torch_backend.operation import flat
from phalanx.torch_backend.rules import MESSAGES
from phalanx.virtual_gpus import library
from phalanx.virtual_gpus.library import Comms

# NCCL's names that differ from those of the events.
_NAMES = {
    "all_reduce": "allreduce",
    "_all_gather_base": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
}


class ParamComms:
    """The recorder of one group.

    Attributes:
        description: The description of the group.
    """

    def __init__(self, group: Group) -> None:
        self.description = ""
        self._group = group
        ranks = list(group.ranks)
        steps = {later - earlier for earlier, later in itertools.pairwise(ranks)}
        self._first, self._stride = ranks[0], steps.pop() if len(steps) == 1 else len(ranks) == 1

    def begin(self, event: str, inputs: Sequence[Tensor], result: Sequence[Any], sequence: int) -> object:
        """Begin the record of an operation."""
        comms = Comms(
            group=self._group.name,
            description=self.description,
            collective=_NAMES.get(event, event),
            rank=self._group.rank,
            size=self._group.size,
            first_rank=self._first,
            rank_stride=int(self._stride),
            sequence=sequence,
            is_message=event in MESSAGES,
            is_async=True,
        )
        given, made = ([tensor._cdata for tensor in tensors] for tensors in (inputs, flat(result)))
        return library.current().begin_comms(comms, given, made)

    def end(self, record: Any) -> None:
        """End the record, on the same thread."""
        library.current().end_comms(record)

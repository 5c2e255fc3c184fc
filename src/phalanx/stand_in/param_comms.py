"""What torch's profiler knows of NCCL's collectives beyond their names: sizes and ranks, as "record_param_comms"."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phalanx.devices import library
from phalanx.devices.library import Comms
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.torch_backend.effects import flat

# NCCL's names, where they differ from those of the events.
_NAMES = {
    "all_reduce": "allreduce",
    "_all_gather_base": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
}
_MESSAGES = {"send", "recv"}


class ParamComms:
    """The recorder of one group.

    Attributes:
        description: What the group is for.
    """

    def __init__(self, group: SharedMemoryGroup) -> None:
        self.description = ""
        self._group = group
        ranks = list(group.ranks)
        steps = {later - earlier for earlier, later in itertools.pairwise(ranks)}
        self._first, self._stride = ranks[0], steps.pop() if len(steps) == 1 else len(ranks) == 1

    def begin(self, event: str, inputs: Sequence[Tensor], result: Sequence[Any], sequence: int) -> object:
        """Begin the record of an operation's start."""
        comms = Comms(
            group=self._group.name,
            description=self.description,
            collective=_NAMES.get(event, event),
            rank=self._group.rank,
            size=self._group.size,
            first_rank=self._first,
            rank_stride=int(self._stride),
            sequence=sequence,
            is_message=event in _MESSAGES,
            is_async=True,
        )
        given, made = ([tensor._cdata for tensor in tensors] for tensors in (inputs, flat(result)))
        return library.current().begin_comms(comms, given, made)

    def end(self, record: Any) -> None:
        """End it, on the same thread."""
        library.current().end_comms(record)

"""phalanx in MPI's place. MPI's constructor is told neither rank nor store: the launcher's words are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.errors import UsageError
from phalanx.groups.connect import join
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.launch.context import current_context
from phalanx.settings import Placement, read_placement
from phalanx.stand_in import group_creation
from phalanx.stand_in.group import DEFAULT_TIMEOUT, StandInGroup
from phalanx.torch_backend.dynamo import skip_own_code
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.torch_functions import teach_torch
from phalanx.torch_backend.untyped import Store, dist

# How many default groups this process has made at a place: every rank counts alike.
_generations: Counter[str] = Counter()


class MpiStandIn(StandInGroup):
    """What `ProcessGroupMPI` means while the stand-in is installed."""

    stands_in_for = "mpi"

    @classmethod
    def create(cls, ranks: Sequence[int]) -> MpiStandIn | None:
        """Make a group of these ranks of the job, all when empty; None on the others.

        Raises:
            UsageError: No launcher has said which rank this is.
            OperationTimeoutError: Not every rank came.
        """
        own = _own_place()
        members = list(ranks) or list(range(own.size))
        if own.rank not in members:
            return None
        teach_torch()
        skip_own_code()
        made = group_creation.current()
        name = made.name if made is not None else f"mpi:{members}"
        _generations[own.meeting] += made is not None and made.is_default
        timeout = made.timeout if made is not None else DEFAULT_TIMEOUT
        context = current_context()
        group = join(
            members.index(own.rank),
            len(members),
            f"{own.meeting}#mpi#{_generations[own.meeting]}#{name}#{members}",
            name=name or "default",
            timeout_s=timeout.total_seconds(),
            is_thread=context is not None and context.is_thread,
            ranks=members,
            crowd=own.size,
        )
        created = cls(group, made.store if made is not None else dist.Store(), name=name)
        created._tell()
        return created

    def _of_the_same_kind(self, group: SharedMemoryGroup, store: Store, name: str) -> PhalanxProcessGroup:
        return MpiStandIn(group, store, name=name)


def _own_place() -> Placement:
    context = current_context()
    if context is not None:
        return Placement(context.rank, context.size, context.meeting)
    placement = read_placement()
    if placement is None:
        raise UsageError(
            "phalanx stands in for MPI, but nobody has said which rank this process is\n"
            "  do       start the program with phalanx run, mpiexec or torchrun"
        )
    return placement

"""The stand-in for MPI. Its constructor gets neither rank nor store, so they come from the launcher's variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from phalanx.collectives import LocalGroup
from phalanx.errors import UsageError
from phalanx.launch.context import current_context
from phalanx.launch.run_name import name_of_run
from phalanx.settings import AssignedRank, read_placement
from phalanx.stand_in import group_creation
from phalanx.stand_in.group import DEFAULT_TIMEOUT, StandInGroup
from phalanx.torch_backend.creation import join_at
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import Store, dist

# How many default groups this process has made by meeting place; the count is the same on every rank.
_generations: Counter[str] = Counter()


class MpiStandIn(StandInGroup):
    """The class that replaces `ProcessGroupMPI` while the stand-in is installed."""

    stands_in_for = "mpi"

    @classmethod
    def create(cls, ranks: Sequence[int]) -> MpiStandIn | None:
        """Make a group of these ranks of the job, or of all ranks if empty; return None on other ranks.

        Raises:
            UsageError: No launcher has set the rank.
            OperationTimeoutError: A rank is missing.
        """
        own = _own_place()
        members = list(ranks) or list(range(own.size))
        if own.rank not in members:
            return None
        made = group_creation.current()
        name = made.name if made is not None else f"mpi:{members}"
        _generations[own.meeting] += made is not None and made.is_default
        timeout = made.timeout if made is not None else DEFAULT_TIMEOUT
        place = f"{own.meeting}#mpi#{_generations[own.meeting]}#{name}#{members}"
        group = join_at(lambda: place, members.index(own.rank), members, timeout, name=name, crowd=own.size)
        created = cls(group, made.store if made is not None else dist.Store(), name=name)
        created._log_stand_in()
        return created

    def _of_the_same_kind(self, group: LocalGroup, store: Store, name: str) -> PhalanxProcessGroup:
        return MpiStandIn(group, store, name=name)


def _own_place() -> AssignedRank:
    context = current_context()
    if context is not None:
        return AssignedRank(context.rank, context.size, context.meeting)
    placement = read_placement()
    if placement is None:
        raise UsageError(
            "phalanx stands in for MPI, but no launcher has given this process a rank\n"
            "  do       start the program with phalanx run, mpiexec or torchrun"
        )
    return replace(placement, meeting=name_of_run(placement))

"""How much shared memory a group takes, and the words when the machine has not got it."""

from __future__ import annotations

from phalanx.engine._native import MAX_RANKS, GroupSegment, OutOfMemory, Segment, create_segment
from phalanx.errors import SharedMemoryError, UsageError

KIB = 1024
CHUNK_BYTES = 512 * KIB  # measured: smaller ones are read out of the producer's own cache, which is slow
BULK_BYTES = 1024 * KIB
EAGER_BYTES_OF_A_RANK = 2048 * KIB  # shared by its channels to all peers; measured: 1 MiB for one of them is slower
PAGE_BYTES = 4096


def create_group_segment(name: str, num_ranks: int, *, crowd: int, cores: int | None = None) -> GroupSegment:
    """Create the memory of a group: at most 8 MiB per rank.

    Args:
        name: The group's name.
        num_ranks: How many ranks will attach.
        crowd: Ranks that compete for the machine's cores, members or not.
        cores: How many cores those have, see count_cores(); as many as this process may use if not given.

    Raises:
        SharedMemoryError: The machine has not got it.
        UsageError: The number of ranks is not possible.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"a group can't have {num_ranks} ranks; give 1 to {MAX_RANKS}")
    eager_bytes = max(PAGE_BYTES, EAGER_BYTES_OF_A_RANK // max(1, num_ranks - 1) // PAGE_BYTES * PAGE_BYTES)
    try:
        return GroupSegment(name, num_ranks, crowd, cores or 0, CHUNK_BYTES, eager_bytes, BULK_BYTES)
    except OutOfMemory as shortage:
        raise _explain_shortage(f'group "{name}" of {num_ranks} ranks', shortage) from None


def create_symmetric_segment(label: str, num_ranks: int, bytes_per_rank: int) -> Segment:
    """Create memory for one tensor per rank.

    Raises:
        SharedMemoryError: The machine has not got it.
    """
    stride = (bytes_per_rank + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    try:
        return create_segment(label, max(stride, PAGE_BYTES) * num_ranks)
    except OutOfMemory as shortage:
        raise _explain_shortage(f"a symmetric tensor of {num_ranks} ranks", shortage) from None


def _explain_shortage(what: str, shortage: MemoryError) -> SharedMemoryError:
    needed, available = shortage.args
    error = SharedMemoryError(
        f"not enough shared memory for {what}\n"
        f"  needed     {needed / 2**20:.1f} MiB\n"
        f"  available  {available / 2**20:.1f} MiB (memory, control-group and address-space limits)\n"
        f"  do         use fewer ranks or smaller tensors, or raise the limit"
    )
    error.needed_bytes, error.available_bytes = needed, available
    return error

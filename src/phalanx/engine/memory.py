"""How much shared memory a group takes, and the error if the machine does not have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from phalanx.engine._native import MAX_RANKS, GroupSegment, OutOfMemory, Segment, create_segment
from phalanx.errors import SharedMemoryError, UsageError
from phalanx.scarcity import in_words

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
        SharedMemoryError: The machine does not have it.
        UsageError: The number of ranks is not possible.
    """
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"a group can't have {num_ranks} ranks; give 1 to {MAX_RANKS}")
    eager_bytes = max(PAGE_BYTES, EAGER_BYTES_OF_A_RANK // max(1, num_ranks - 1) // PAGE_BYTES * PAGE_BYTES)
    with naming_shortage(f'group "{name}" of {num_ranks} ranks'):
        return GroupSegment(name, num_ranks, crowd, cores or 0, CHUNK_BYTES, eager_bytes, BULK_BYTES)


def create_symmetric_segment(label: str, num_ranks: int, bytes_per_rank: int) -> Segment:
    """Create memory for one tensor per rank.

    Raises:
        SharedMemoryError: The machine does not have it.
    """
    stride = (bytes_per_rank + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    with naming_shortage(f"a symmetric tensor of {num_ranks} ranks"):
        return create_segment(label, max(stride, PAGE_BYTES) * num_ranks)


@contextlib.contextmanager
def naming_shortage(what: str) -> Iterator[None]:
    """Say what was to be made or mapped when the machine can't do it.

    Raises:
        SharedMemoryError: There is not enough memory.
        OSError: There are not enough descriptors, or the like.
    """
    try:
        yield
    except OutOfMemory as shortage:
        raise _explain_shortage(what, shortage) from None
    except OSError as error:
        raise in_words(error, f"no shared memory for {what}") from None


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

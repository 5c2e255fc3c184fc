"""How much memory a group takes, and whether it stays that way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.engine import RankEndpoint
from phalanx.launch.spawn import spawn


@dataclass(frozen=True)
class MemoryFacts:
    """What one group of that many ranks took.

    Attributes:
        ranks: Its size.
        segment_bytes: Its shared memory at most.
        collectives: How many collectives ran between the two looks.
        growth_bytes: How much the largest rank grew over them, private and shared.
    """

    ranks: int
    segment_bytes: int
    collectives: int
    growth_bytes: int


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _run_many(collectives: int) -> tuple[int, int]:
    import torch

    from phalanx.groups.connect import connect

    group = connect()
    tensors = [torch.ones(1 << power) for power in (0, 8, 12, 16)]

    def run(count: int) -> None:
        for number in range(count):
            group.all_reduce(tensors[3 if number % 100 == 0 else number % 3])
            if number % 1000 == 0:
                work = group.all_reduce(tensors[0], async_op=True)
                assert work is not None
                work.wait()

    run(2000)
    before = _resident_bytes()
    run(collectives)
    assert isinstance(group, RankEndpoint)
    return group.size_bytes, _resident_bytes() - before


def measure_memory(num_ranks: int, collectives: int) -> dict[str, int]:
    """Run that many collectives and compare the memory before and after."""
    results = spawn(_run_many, ranks=num_ranks, args=(collectives,))
    return asdict(MemoryFacts(num_ranks, results[0][0], collectives, max(growth for _, growth in results)))

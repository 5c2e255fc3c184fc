"""Whole runs that never happened, with timings from a fixed seed."""

from __future__ import annotations

import random
from pathlib import Path

from tests.timeline.raw_files import RawRank

MS = 1_000_000
_T0 = 5_000_000_000_000


def write_training(folder: Path, *, num_ranks: int = 4, num_spans: int = 200, slow_rank: int = 2) -> None:
    """Write a training run: async all_reduces in a backward pass, a pipeline of messages, a barrier now and then.

    Ranks come to each operation at different times; `slow_rank` mostly comes last.
    """
    dice = random.Random(7)
    ranks = [RawRank(rank).group(0, "world", num_ranks=num_ranks) for rank in range(num_ranks)]
    for rank, raw in enumerate(ranks):
        side, nonce = rank % 2, bytes([9, rank % 2]) * 8
        size = len(range(side, num_ranks, 2))
        raw.group(1, ("even", "odd")[side], rank=rank // 2, num_ranks=size, nonce=nonce)
    clock = [_T0] * num_ranks
    number = [0, 0]
    step = 0
    while sum(len(raw.records) for raw in ranks) < num_spans:
        _pipeline(ranks, clock, dice, step)
        for bucket in range(3):
            number[0] += 1
            _collective(ranks, clock, dice, "all_reduce", number[0], 0, slow_rank, is_async=bucket == 0)
        number[1] += 1
        _collective(ranks, clock, dice, "all_gather", number[1], 1, slow_rank, is_async=False)
        number[0] += 1
        kind = ("barrier", "broadcast", "reduce_scatter")[step % 3]
        _collective(ranks, clock, dice, kind, number[0], 0, slow_rank, is_async=False)
        step += 1
    for raw in ranks:
        raw.write(folder)


def _collective(
    ranks: list[RawRank], clock: list[int], dice: random.Random, operation: str, number: int, group: int,
    slow_rank: int, *, is_async: bool,
) -> None:  # fmt: skip
    size_bytes = {"barrier": 0, "broadcast": 1 << 16}.get(operation, 1 << 20)
    shape = {"barrier": (), "broadcast": (128, 128)}.get(operation, (512, 512))
    sides = [[*range(len(ranks))]] if group == 0 else [[*range(0, len(ranks), 2)], [*range(1, len(ranks), 2)]]
    for side in sides:
        for rank in side:
            clock[rank] += int(dice.uniform(0.2, 0.9) * MS) + (rank == slow_rank) * int(dice.uniform(0.3, 1.5) * MS)
        last = max(clock[rank] for rank in side)
        for rank in side:
            start, end = clock[rank], last + int(dice.uniform(0.3, 0.6) * MS)
            clock[rank] = start + MS // 20 if is_async else end
            ranks[rank].call(
                operation, number, start, end, group=group, shape=shape, size_bytes=size_bytes,
                is_async=is_async, place=f"train.py:{60 + len(operation)}",
            )  # fmt: skip


def _pipeline(ranks: list[RawRank], clock: list[int], dice: random.Random, step: int) -> None:
    """Each rank sends to the next one."""
    for rank in range(len(ranks) - 1):
        sent = clock[rank] + int(dice.uniform(0.1, 0.3) * MS)
        clock[rank] = sent + int(0.1 * MS)
        ranks[rank].call("send", step, sent, clock[rank], peer=rank + 1, size_bytes=1 << 18, shape=(256, 256),
                         place="stages.py:21")  # fmt: skip
        waits_since = clock[rank + 1]
        clock[rank + 1] = max(waits_since, sent) + int(0.25 * MS)
        ranks[rank + 1].call("recv", step, waits_since, clock[rank + 1], peer=rank, size_bytes=1 << 18,
                             shape=(256, 256), place="stages.py:34")  # fmt: skip

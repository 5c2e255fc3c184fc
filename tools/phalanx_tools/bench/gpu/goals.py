"""What a collective on a GPU should reach, and the bytes that it can't avoid to move. Plain arithmetic, no torch.

`bytes` of a case is the largest tensor of a rank, as in phalanx_tools.bench.cases. The least that must move is every
input read once and every output written once, by all ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx_tools.bench.cases import ITEM_BYTES, Case

KIB, MIB = 1 << 10, 1 << 20
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SIZES = (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
RANKS = (2, 4, 8)
CONTENDERS = ("phalanx", "phalanx_torch", "gloo")
JUDGED_RANKS = 4  # of a training step


@dataclass(frozen=True)
class Goal:
    """What a row should reach; 0 or None where nothing is asked.

    Attributes:
        share: The least share of the copy bandwidth, from 0 to 1.
        most_s: The longest time.
        times_gloo: How many times faster than Gloo at least.
    """

    share: float = 0.0
    most_s: float | None = None
    times_gloo: float = 0.0


_SMALL_S = 60e-6
_LARGE = {(4, 256 * MIB): Goal(share=0.75, times_gloo=80.0), (8, 64 * MIB): Goal(share=0.60, times_gloo=80.0)}


def goal_of(case: Case) -> Goal | None:
    """Return what a case should reach; None when it only shows how cost grows."""
    if case.operation == "send_recv":
        return None
    if case.bytes <= MIB:
        return Goal(most_s=_SMALL_S, times_gloo=25.0 if case.ranks == 8 else 0.0)
    return _LARGE.get((case.ranks, case.bytes))


def has_training_goal(backend: str, num_ranks: int, is_view: bool) -> bool:
    """Tell whether a training step is judged.

    DDP's default is only shown: it copies gradients back when it communicates, which gradient_as_bucket_view avoids.
    """
    return backend == "phalanx" and num_ranks == JUDGED_RANKS and is_view


def counts(case: Case) -> tuple[int, int]:
    """Return the elements of the largest tensor of a rank, and of a rank's part of it; both at least one."""
    count = max(case.bytes // ITEM_BYTES, 1)
    return count, max(count // case.ranks, 1)


def least_bytes(case: Case) -> int:
    """Return the bytes that all ranks together must at least read and write."""
    count, part = counts(case)
    n = case.ranks
    elements = {
        "all_reduce": n * count + n * count,
        "all_gather": n * part + n * (n * part),
        "reduce_scatter": n * (n * part) + n * part,
        "broadcast": count + (n - 1) * count,
        "all_to_all": n * (n * part) + n * (n * part),
        "send_recv": n // 2 * count + n // 2 * count,  # one direction of all pairs at once
    }
    return elements[case.operation] * ITEM_BYTES


def share_of_copy(case: Case, seconds: float, copy_bytes_per_s: float) -> float:
    """Return how fast the least bytes moved, as a share of the bandwidth of a plain copy."""
    return least_bytes(case) / seconds / copy_bytes_per_s


def compare_with_goal(case: Case, seconds: float, gloo_s: float | None, copy_bytes_per_s: float) -> str:
    """Compare a row with its goal: "" when nothing is asked, "ok", or what is missed."""
    goal = goal_of(case)
    if goal is None:
        return ""
    missed = []
    share = share_of_copy(case, seconds, copy_bytes_per_s)
    if share < goal.share:
        missed.append(f"{share:.0%} of {goal.share:.0%}")
    if goal.most_s is not None and seconds > goal.most_s:
        missed.append(f"over {goal.most_s * 1e6:.0f} us")
    if gloo_s is None:
        missed += ["no time of Gloo's"] if goal.times_gloo else []
    elif gloo_s / seconds < goal.times_gloo:
        missed.append(f"{gloo_s / seconds:.0f}x of {goal.times_gloo:.0f}x")
    return "missed: " + ", ".join(missed) if missed else "ok"

from __future__ import annotations

import time

from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.worlds import every_world, worlds


def _enter_and_leave(group: SharedMemoryGroup, rounds: int) -> None:
    """Check when ranks entered and left each barrier; each time another rank comes late."""
    moments = []
    for number in range(rounds):
        late_until = time.monotonic_ns() + (500_000 if number % group.size == group.rank else 0)
        while time.monotonic_ns() < late_until:
            pass
        entered = time.monotonic_ns()
        group.barrier()
        moments.append((entered, time.monotonic_ns()))
    for of_round in zip(*group.all_gather_object(moments), strict=True):
        assert min(left for _, left in of_round) >= max(entered for entered, _ in of_round)


@every_world
def test_nobody_leaves_a_barrier_before_the_last_has_come(group: SharedMemoryGroup) -> None:
    _enter_and_leave(group, 40)


@worlds(8)
def test_nobody_of_eight_leaves_a_barrier_before_the_last_has_come(group: SharedMemoryGroup) -> None:
    _enter_and_leave(group, 20)


@every_world
def test_an_asynchronous_barrier_is_done_when_all_have_come(group: SharedMemoryGroup) -> None:
    works = [group.barrier(async_op=True) for _ in range(40)]
    for work in works:
        work.wait()
    assert all(work.done() for work in works)

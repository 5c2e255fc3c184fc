from __future__ import annotations

import time

import phalanx
from tests.checks import check
from tests.run_ranks import World, every_world, worlds


def _enter_and_leave(rounds: int) -> list[tuple[int, int]]:
    """Return when this rank entered and left each barrier; each time another rank comes late."""
    group = phalanx.connect()
    moments = []
    for number in range(rounds):
        late_until = time.monotonic_ns() + (500_000 if number % group.size == group.rank else 0)
        while time.monotonic_ns() < late_until:
            pass
        entered = time.monotonic_ns()
        group.barrier()
        moments.append((entered, time.monotonic_ns()))
    return moments


@every_world
def test_nobody_leaves_a_barrier_before_the_last_has_come(world: World) -> None:
    for moments in zip(*world.run(_enter_and_leave, 40), strict=True):
        assert min(left for _, left in moments) >= max(entered for entered, _ in moments)


@worlds(8)
def test_nobody_of_eight_leaves_a_barrier_before_the_last_has_come(world: World) -> None:
    for moments in zip(*world.run(_enter_and_leave, 20), strict=True):
        assert min(left for _, left in moments) >= max(entered for entered, _ in moments)


@every_world
def test_an_asynchronous_barrier_is_done_when_all_have_come(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        works = [group.barrier(async_op=True) for _ in range(40)]
        for work in works:
            work.wait()
        check(all(work.done() for work in works))

    world.run(program)

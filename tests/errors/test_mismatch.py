"""Ranks that call different things: an error on all of them at once, which names who differs and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from tests.checks import Stopwatch, check, contains, equal, raised
from tests.run_ranks import World, worlds

Call = Callable[[Any], Any]
MAX = ReduceOp.MAX

# name, what most ranks call, what rank 1 calls, on what they disagree
CASES: list[tuple[str, Call, Call, str]] = [
    ("operation", lambda g: g.all_reduce(torch.ones(2)), lambda g: g.barrier(), "operation"),
    ("operation-large", lambda g: g.all_reduce(torch.ones(9999)), lambda g: g.broadcast(torch.ones(9999)), "operation"),
    ("shape", lambda g: g.all_reduce(torch.ones(2)), lambda g: g.all_reduce(torch.ones(3)), "shape"),
    ("shape-large", lambda g: g.all_reduce(torch.ones(90_000)), lambda g: g.all_reduce(torch.ones(2)), "shape"),
    ("dtype", lambda g: g.all_reduce(torch.ones(2)), lambda g: g.all_reduce(torch.ones(2).int()), "dtype"),
    ("op", lambda g: g.all_reduce(torch.ones(2)), lambda g: g.all_reduce(torch.ones(2), MAX), "reduce operation"),
    ("root", lambda g: g.broadcast(torch.ones(2), 0), lambda g: g.broadcast(torch.ones(2), 1), "root"),
    ("root-large", lambda g: g.broadcast(torch.ones(90_000), 0), lambda g: g.broadcast(torch.ones(90_000), 1), "root"),
    ("reduce-root", lambda g: g.reduce(torch.ones(2), 0), lambda g: g.reduce(torch.ones(2), 1), "root"),
    ("broadcast-shape", lambda g: g.broadcast(torch.ones(2)), lambda g: g.broadcast(torch.ones(5)), "shape"),
    ("gather-shape",
     lambda g: g.gather([torch.ones(2)] * g.size if g.rank == 0 else None, torch.ones(2)),
     lambda g: g.gather(None, torch.ones(4)), "shape"),
    ("all_gather-shape",
     lambda g: g.all_gather_single(torch.ones(2 * g.size), torch.ones(2)),
     lambda g: g.all_gather_single(torch.ones(4 * g.size), torch.ones(4)), "shape"),
    ("reduce_scatter-op",
     lambda g: g.reduce_scatter_single(torch.ones(2), torch.ones(2 * g.size)),
     lambda g: g.reduce_scatter_single(torch.ones(2), torch.ones(2 * g.size), ReduceOp.MIN), "reduce operation"),
]  # fmt: skip


@worlds(2, 3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_mismatch_is_an_error_on_all_ranks_at_once(world: World, case: tuple[str, Call, Call, str]) -> None:
    def program(usual: Call, other: Call, field: str) -> bool:
        group = phalanx.connect(timeout_s=30)
        watch = Stopwatch()

        def disagree() -> None:
            (other if group.rank == 1 else usual)(group)
            group.barrier()  # a rank that nobody had to answer hears of it in its next call

        error = raised(phalanx.MismatchError, disagree)
        check(watch.seconds() < 2, watch.seconds())
        contains(str(error).splitlines()[0], 'group "world"')
        contains(error, f"here     rank {group.rank} of {group.size}")
        equal((error.group, error.rank, error.num_ranks), ("world", group.rank, group.size))
        raised(phalanx.MismatchError, group.barrier)
        if error.sequence != 1:
            contains(error, "the group broke in operation #1, where ranks called different things")
            return False
        contains(str(error).splitlines()[0], f"ranks disagree on {field}")
        contains(error, "differs", "test_mismatch.py:")
        equal(error.culprits, (1,))
        return True

    assert any(world.run(program, *case[1:])), "somebody was in the operation and knows all about it"


def _line_of(marker: str) -> int:
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {marker}"))


@worlds(3)
def test_a_mismatch_names_the_rank_that_differs_and_its_source_line(world: World) -> None:
    def program() -> str:
        group = phalanx.connect(timeout_s=30)
        try:
            if group.rank == 2:
                group.all_reduce(torch.ones(10, 10), ReduceOp.MAX)  # the other call
            else:
                group.all_reduce(torch.ones(1024), ReduceOp.MAX)  # the usual call
        except phalanx.MismatchError as error:
            return str(error)
        return ""

    other, usual = _line_of("the other call"), _line_of("the usual call")
    for rank, text in enumerate(world.run(program)):
        first, *lines = text.splitlines()
        assert first == 'all_reduce #1 of group "world": ranks disagree on shape'
        facts = {line.split()[0]: line for line in lines}
        if rank == 2:
            assert (
                f"rank 2 of 3 called all_reduce max float32 (10, 10), errors/test_mismatch.py:{other}" in facts["here"]
            )
            assert (
                f"ranks 0-1 called all_reduce max float32 (1024,), errors/test_mismatch.py:{usual}" in facts["differs"]
            )
        else:
            assert f"rank {rank} of 3 called all_reduce max float32 (1024,)" in facts["here"]
            assert facts["differs"].strip().startswith("differs  rank 2")
            assert f"called all_reduce max float32 (10, 10), errors/test_mismatch.py:{other}" in facts["differs"]
        assert "(pid " in facts["differs"] or world.kind == "thread" or rank == 2
        assert "drop_last=True" in facts["do"]


@worlds(2, 3)
def test_split_sizes_that_do_not_fit_are_named(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        n = group.size
        input_splits = [2] * n
        output_splits = [2] * n if group.rank != 0 else [3 if source == 1 else 2 for source in range(n)]

        def swap() -> None:
            group.all_to_all_single(torch.ones(sum(output_splits)), torch.ones(2 * n), output_splits, input_splits)
            group.barrier()

        error = raised(phalanx.MismatchError, swap)
        if group.rank == 0 or error.sequence == 1:  # the others may have left already: they hear in their next call
            contains(error, "ranks disagree on split sizes", "rank 1", "sends 8 bytes, rank 0 has room for 12")
        equal(error.culprits, (1,))

    world.run(program)


@worlds(2, 3)
def test_uneven_lists_that_differ_are_a_mismatch(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        n = group.size
        sizes = [2 + (group.rank if rank == 0 else 0) for rank in range(n)]
        sizes[group.rank] = 2
        outputs = [torch.zeros(size) for size in sizes]

        def gather() -> None:
            group.all_gather(outputs, torch.ones(2))
            group.barrier()

        raised(phalanx.MismatchError, gather)

    world.run(program)


@worlds(2)
def test_source_lines_stay_right_after_hundreds_of_call_sites(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        source = "\n".join(["group.barrier()"] * 300)
        exec(compile(source, "many/sites.py", "exec"), {"group": group})
        last = f"group.all_reduce(torch.ones({1 + group.rank}))"
        code = compile("\n" * (1000 + group.rank) + last, "many/last.py", "exec")
        error = raised(phalanx.MismatchError, exec, code, {"group": group, "torch": torch})
        contains(error, f"here     rank {group.rank} of 2", f"many/last.py:{1001 + group.rank}")
        contains(error, f"(2,), many/last.py:{1002}", f"(1,), many/last.py:{1001}")

    world.run(program)


@worlds(2)
def test_the_sequence_tells_which_call_went_wrong(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        for _ in range(41):
            group.barrier()
        error = raised(phalanx.MismatchError, group.all_reduce, torch.ones(1 + group.rank))
        equal((error.sequence, error.operation), (42, "all_reduce"))
        contains(error, "all_reduce #42")

    world.run(program)


@worlds(2)
def test_shapes_of_equal_size_may_differ(world: World) -> None:
    """What is moved is the same; torch's own engines allow it too."""

    def program() -> None:
        group = phalanx.connect()
        group.all_reduce(torch.ones(2, 3) if group.rank == 0 else torch.ones(6))

    world.run(program)

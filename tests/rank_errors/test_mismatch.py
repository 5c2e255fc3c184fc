"""Ranks that call different things: an error on all of them at once, which names who differs and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.launch.context import current_context
from tests.checks import Stopwatch
from tests.worlds import worlds

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

_FOLDER = Path(__file__).parent.name


@worlds(2, 3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_mismatch_is_an_error_on_all_ranks_at_once(group: Any, case: tuple[str, Call, Call, str]) -> None:
    _, usual, other, field = case
    result = phalanx.connect()
    watch = Stopwatch()

    def disagree() -> None:
        (other if group.rank == 1 else usual)(group)
        group.barrier()  # a rank that nobody had to answer hears of it in its next call

    with pytest.raises(phalanx.MismatchError) as caught:
        disagree()
    assert watch.seconds() < 20
    error, text = caught.value, str(caught.value)
    first_line = text.splitlines()[0]
    assert 'group "world"' in first_line
    assert f"here     rank {group.rank} of {group.size}" in text
    assert (error.group, error.rank, error.num_ranks) == ("world", group.rank, group.size)
    with pytest.raises(phalanx.MismatchError):
        group.barrier()
    if error.sequence == 1:
        assert f"ranks disagree on {field}" in first_line
        assert "differs" in text
        assert "test_mismatch.py:" in text
        # Of two ranks, either may be wrong. Of three, one may not have come yet.
        assert error.culprits == ((1,) if (0, 2) in error.sides else ())
    else:
        assert "the group broke in operation #1, where ranks called different things" in text
    assert 1 in result.all_gather_object(error.sequence), "somebody was in the operation and knows all about it"


def _line_of(marker: str) -> int:
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {marker}"))


@worlds(3)
def test_a_mismatch_names_the_rank_that_differs_and_its_source_line(group: Any) -> None:
    if group.rank == 2:
        with pytest.raises(phalanx.MismatchError) as caught:
            group.all_reduce(torch.ones(10, 10), ReduceOp.MAX)  # the other call
    else:
        with pytest.raises(phalanx.MismatchError) as caught:
            group.all_reduce(torch.ones(1024), ReduceOp.MAX)  # the usual call
    other, usual = _line_of("the other call"), _line_of("the usual call")
    first, *lines = str(caught.value).splitlines()
    assert first == 'all_reduce #1 of group "world": ranks disagree on shape'
    facts = {line.split()[0]: line for line in lines}
    if group.rank == 2:
        assert (
            f"rank 2 of 3 called all_reduce max float32 (10, 10), {_FOLDER}/test_mismatch.py:{other}" in facts["here"]
        )
        assert (
            f"ranks 0-1 called all_reduce max float32 (1024,), {_FOLDER}/test_mismatch.py:{usual}" in facts["differs"]
        )
    else:
        assert f"rank {group.rank} of 3 called all_reduce max float32 (1024,)" in facts["here"]
        assert facts["differs"].strip().startswith("differs  rank 2")
        assert f"called all_reduce max float32 (10, 10), {_FOLDER}/test_mismatch.py:{other}" in facts["differs"]
        context = current_context()
        assert context is not None
        assert ("(pid " in facts["differs"]) is not context.is_thread
    assert "drop_last=True" in facts["do"]


@worlds(2, 3)
def test_split_sizes_that_do_not_fit_are_named(group: SharedMemoryGroup) -> None:
    n = group.size
    input_splits = [2] * n
    output_splits = [2] * n if group.rank != 0 else [3 if source == 1 else 2 for source in range(n)]

    def swap() -> None:
        group.all_to_all_single(torch.ones(sum(output_splits)), torch.ones(2 * n), output_splits, input_splits)
        group.barrier()

    with pytest.raises(phalanx.MismatchError) as caught:
        swap()
    if group.rank == 0 or caught.value.sequence == 1:  # the others may have left already: they hear in their next call
        assert "ranks disagree on split sizes" in str(caught.value)
        assert "rank 1" in str(caught.value)
        assert "sends 8 bytes, rank 0 has room for 12" in str(caught.value)
    assert caught.value.culprits == ()


@worlds(2, 3)
def test_uneven_lists_that_differ_are_a_mismatch(group: SharedMemoryGroup) -> None:
    n = group.size
    sizes = [2 + (group.rank if rank == 0 else 0) for rank in range(n)]
    sizes[group.rank] = 2
    outputs = [torch.zeros(size) for size in sizes]

    def gather() -> None:
        group.all_gather(outputs, torch.ones(2))
        group.barrier()

    with pytest.raises(phalanx.MismatchError):
        gather()


@worlds(2)
def test_source_lines_stay_right_after_hundreds_of_call_sites(group: SharedMemoryGroup) -> None:
    source = "\n".join(["group.barrier()"] * 300)
    exec(compile(source, "many/sites.py", "exec"), {"group": group})
    last = f"group.all_reduce(torch.ones({1 + group.rank}))"
    code = compile("\n" * (1000 + group.rank) + last, "many/last.py", "exec")
    with pytest.raises(phalanx.MismatchError) as caught:
        exec(code, {"group": group, "torch": torch})
    assert f"here     rank {group.rank} of 2" in str(caught.value)
    assert f"many/last.py:{1001 + group.rank}" in str(caught.value)
    assert f"(2,), many/last.py:{1002}" in str(caught.value)
    assert f"(1,), many/last.py:{1001}" in str(caught.value)


@worlds(2)
def test_the_sequence_tells_which_call_went_wrong(group: SharedMemoryGroup) -> None:
    for _ in range(41):
        group.barrier()
    with pytest.raises(phalanx.MismatchError) as caught:
        group.all_reduce(torch.ones(1 + group.rank))
    assert (caught.value.sequence, caught.value.operation) == (42, "all_reduce")
    assert "all_reduce #42" in str(caught.value)


@worlds(2)
def test_shapes_of_equal_size_may_differ(group: SharedMemoryGroup) -> None:
    """What is moved is the same; torch's own engines allow it too."""
    group.all_reduce(torch.ones(2, 3) if group.rank == 0 else torch.ones(6))


def _broadcast_with_two_roots_once(group: SharedMemoryGroup, num_before: int, num_after: int) -> None:
    for number in range(num_before + 1 + num_after):
        root = group.rank if number == num_before and group.rank < 2 else 0
        group.broadcast(torch.ones(2), root)


@worlds(3)
def test_two_roots_of_one_small_broadcast_are_noticed_at_the_next_operation_of_all(group: SharedMemoryGroup) -> None:
    def disagree() -> None:
        _broadcast_with_two_roots_once(group, 5, 10)
        group.barrier()
        group.barrier()  # a rank that was not told yet hears of it here

    with pytest.raises(phalanx.MismatchError, match="ranks disagree on root"):
        disagree()


@worlds(3)
def test_two_roots_of_one_small_broadcast_among_many_may_go_unnoticed(group: SharedMemoryGroup) -> None:
    """docs/known-limitations.md: roots compare one call in 32."""
    _broadcast_with_two_roots_once(group, 5, 200)
    group.barrier()

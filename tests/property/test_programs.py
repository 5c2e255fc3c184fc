"""Random collectives, types, shapes, splits and orders of waiting, compared with torch in one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.interpreter import OPERATIONS, Step, run_program
from tests.reference import DTYPES, ops_of

COUNTS = st.one_of(
    st.integers(0, 40),
    st.sampled_from([79, 80, 81, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 16_384, 65_537, 140_000]),
)
REDUCING = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"}
EXAMPLES = 40  # for each kind and number of ranks


@st.composite
def steps(draw: st.DrawFn) -> Step:
    dtype: torch.dtype = draw(st.sampled_from(DTYPES))
    return Step(
        operation=draw(st.sampled_from(OPERATIONS)),
        dtype=dtype,
        counts=tuple(draw(st.lists(COUNTS, min_size=1, max_size=4))),
        op=draw(st.sampled_from(ops_of(dtype))),
        root=draw(st.integers(0, 3)),
        group=draw(st.integers(0, 2)),
        is_async=draw(st.booleans()),
        is_strided=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def test_every_collective_is_in_the_programs() -> None:
    assert REDUCING | {"broadcast", "all_gather", "gather", "scatter", "all_to_all", "messages"} <= set(OPERATIONS)
    assert len(OPERATIONS) == 14


@pytest.mark.slow
@pytest.mark.ranks([1, 2, 3, 4], kind=["process", "thread"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(program=st.lists(steps(), min_size=1, max_size=10))
def test_random_programs_compute_what_torch_computes_alone(program: list[Step]) -> None:
    """Every rank runs the same program; Hypothesis shrinks it on real ranks."""
    run_program(program)

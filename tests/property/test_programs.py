"""Random collectives, types, shapes, splits and orders of waiting, compared with torch in one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.interpreter import OPERATIONS, Step, run_program
from tests.reference import DTYPES, ops_of
from tests.run_ranks import KINDS, Kind, run_ranks

COUNTS = st.one_of(
    st.integers(0, 40),
    st.sampled_from([79, 80, 81, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 16_384, 65_537, 140_000]),
)
REDUCING = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"}
EXAMPLES = {"process": 40, "thread": 150}


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
@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_compute_what_torch_computes_alone(kind: Kind) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(st.integers(1, 4), st.lists(steps(), min_size=1, max_size=10))
    def run(ranks: int, program: list[Step]) -> None:
        run_ranks(kind, ranks, run_program, program, timeout_s=60)

    run()

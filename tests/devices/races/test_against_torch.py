"""What torch's own sanitizer of CUDA finds in random programs of streams, our detector finds too."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.devices.races.programs import (
    NUM_EVENTS,
    NUM_STREAMS,
    NUM_TENSORS,
    Free,
    Launch,
    OurDetector,
    Program,
    Range,
    Sync,
    run_torchs,
)

pytestmark = pytest.mark.slow

STREAMS, EVENTS, TENSORS = (st.integers(0, most - 1) for most in (NUM_STREAMS, NUM_EVENTS, NUM_TENSORS))
SYNCS = st.builds(
    Sync,
    st.sampled_from(
        ["record", "record", "wait", "wait", "forget_event"]
        + [f"host_waits_for_{what}" for what in ("stream", "event", "device")]
    ),
    STREAMS,
    EVENTS,
)


def programs_of(ranges: st.SearchStrategy[Range]) -> st.SearchStrategy[Program]:
    touched = st.lists(ranges, max_size=3, unique=True).map(tuple)
    launches = st.builds(Launch, STREAMS, touched, touched)
    return st.lists(st.one_of(launches, launches, SYNCS, st.builds(Free, TENSORS)), max_size=40)


WHOLE = st.builds(Range, TENSORS)
PARTS = st.builds(
    lambda tensor, lo, size: Range(tensor, lo, lo + size), TENSORS, st.integers(0, 48), st.integers(1, 16)
)
MANY = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> OurDetector:
    logging.getLogger("torch.cuda._sanitizer").setLevel(logging.WARNING)
    return OurDetector(tmp_path_factory.mktemp("detector"))


@MANY
@given(program=programs_of(WHOLE))
def test_whole_tensors_race_exactly_where_torch_says(ours: OurDetector, program: Program) -> None:
    assert ours.run(program) == run_torchs(program)


@MANY
@given(program=programs_of(PARTS))
def test_no_program_with_a_race_for_torch_is_without_one_for_us(ours: OurDetector, program: Program) -> None:
    mine, torchs = ours.run(program), run_torchs(program)
    first = next((at for at, races in enumerate(torchs) if races), None)
    assert first is None or any(mine[: first + 1])


@MANY
@given(program=programs_of(PARTS))
def test_the_first_race_of_parts_is_where_every_byte_says_so(ours: OurDetector, program: Program) -> None:
    """What follows a race depends on what is remembered of it, which is not the same byte by byte."""
    as_bytes = [_in_bytes(step) if isinstance(step, Launch) else step for step in program]
    mine, torchs = ([bool(races) for races in found] for found in (ours.run(program), run_torchs(as_bytes)))
    end = torchs.index(True) + 1 if True in torchs else len(torchs)
    assert mine[:end] == torchs[:end]


def _in_bytes(step: Launch) -> Launch:
    """Let every byte be a tensor of torch's, which knows tensors by their first byte only."""

    def split(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple({Range(r.tensor, at, at + 1) for r in ranges for at in range(r.lo, r.hi)})

    return Launch(step.stream, split(step.reads), split(step.writes))

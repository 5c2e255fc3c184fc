"""Programs for torch.cuda on virtual GPUs: planted stream bugs are found with both lines, correct ones pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import torch

import phalanx
from phalanx.devices import races
from phalanx.errors import RaceError
from phalanx.torch_backend.untyped import dist
from tests.devices.races.correct_programs import PROGRAMS
from tests.devices.races.planted_bugs import BUGS
from tests.virtual_gpus.in_child import in_child

Program = Callable[[], None]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


@pytest.fixture
def nccl(rank: int) -> Iterator[None]:
    """Two virtual GPUs with the detector on, and a group of "nccl"."""
    phalanx.virtual_devices(2, face="cuda", races="raise")
    with phalanx.stand_in_for("nccl"):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        torch.cuda.synchronize()
        yield
        dist.destroy_process_group()


def line_with(program: Program, mark: str) -> int:
    lines, first = inspect.getsourcelines(program)
    return next(first + at for at, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


@in_child
@pytest.mark.parametrize(("program", "kind"), BUGS.items(), ids=[program.__name__ for program in BUGS])
def test_a_planted_bug_is_found_with_both_lines(nccl: None, program: Program, kind: str) -> None:
    with pytest.raises(RaceError) as caught, races.races_mode("raise"):
        program()
    report = races.seen()[0]
    file = inspect.getsourcefile(program)
    assert report.kind == kind
    assert (report.earlier.place.file, report.earlier.place.line) == (file, line_with(program, "earlier"))
    assert (report.here.place.file, report.here.place.line) == (file, line_with(program, "here"))
    assert str(caught.value) == report.text
    assert caught.value.first_line == f"{file}:{line_with(program, 'earlier')}"


@in_child
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_a_correct_program_raises_nothing(nccl: None, program: Program) -> None:
    with races.races_mode("raise"):
        program()
        torch.cuda.synchronize()
    assert races.seen() == []

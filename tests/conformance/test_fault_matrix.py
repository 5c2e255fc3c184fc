"""The fault matrix: a slice of it, half of it, and that a cell does not pass by accident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx_tools.commands.faults import faults
from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.faults import find_fault
from phalanx_tools.conformance.faults.matrix import CellResult, list_cells, run_cells, summarise, write_table
from phalanx_tools.conformance.faults.notes import Note
from phalanx_tools.conformance.faults.operations import CULPRIT, find_operation
from phalanx_tools.conformance.faults.program import run_cell
from phalanx_tools.conformance.faults.verdicts import find_flaws

_PROMPT_S = 10.0  # a busy machine may be late; without the error of a peer it would take 30 s
SLICE = [
    ("phalanx", "all_reduce", "small", "killed"),
    ("phalanx", "all_to_all", "small", "wrong shape"),
    ("phalanx", "broadcast", "small", "wrong root"),
    ("phalanx", "gather", "large", "exited"),
    ("phalanx", "barrier", "small", "raised"),
    ("phalanx", "recv", "small", "skipped call"),
]


def _cell(door: str, operation: str, form: str, fault: str) -> Cell:
    return Cell(find_operation(door, operation), form, find_fault(fault))


@pytest.mark.parametrize("names", SLICE, ids=" ".join)
def test_every_survivor_names_the_culprit(names: tuple[str, str, str, str]) -> None:
    cell = _cell(*names)
    run = run_cell(cell)
    assert not find_flaws(cell, run, _PROMPT_S), run.notes


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted({cell.operation.name for cell in list_cells(doors=["phalanx"])}))
def test_every_survivor_names_the_culprit_of_every_fault_in_a_small_operation(operation: str) -> None:
    _check(list_cells(doors=["phalanx"], forms=["small"], operations=[operation]))


@pytest.mark.slow
def test_every_survivor_names_the_culprit_of_a_fault_in_an_operation_of_torch() -> None:
    """Every fourth: underneath is the same engine. `make faults` has all, large ones too."""
    _check(list_cells(doors=["torch"], forms=["small"])[::4])


def _check(cells: list[Cell]) -> None:
    outcomes = run_cells(cells, lambda outcome, num_done: None, _PROMPT_S)
    assert outcomes
    for outcome in outcomes:
        texts = "\n".join(f"rank {rank}: {note.kind}: {note.text}" for rank, note in outcome.run.notes.items())
        assert not outcome.flaws, f"{outcome.cell}: {outcome.flaws}\n{texts}"


def test_what_one_fault_looks_like_is_not_taken_for_another() -> None:
    cell = _cell("phalanx", "all_reduce", "small", "killed")
    run = run_cell(cell)
    for fault in ("raised", "exited", "exited hard", "stalled", "wrong shape", "skipped call"):
        assert find_flaws(replace(cell, fault=find_fault(fault)), run)


@pytest.mark.slow
def test_the_command_prints_a_table_and_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["--operation", "barrier", "--door", "phalanx", "--fault", "killed", "--json", str(tmp_path / "cells.json")]
    done = CliRunner().invoke(faults, names)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1].split() == ["barrier", "+"]
    assert done.output.splitlines()[-1] == "fault matrix: 1 of 1 named"
    assert '"mark": "+"' in (tmp_path / "cells.json").read_text()
    monkeypatch.setattr("phalanx_tools.conformance.faults.verdicts.PROMPT_S", 0.0)
    done = CliRunner().invoke(faults, names)
    assert done.exit_code == 1
    assert "phalanx barrier, small, killed: x in" in done.output
    assert done.output.splitlines()[-1] == "fault matrix: 0 of 1 named"


def test_names_that_are_not_there_are_refused() -> None:
    done = CliRunner().invoke(faults, ["--operation", "all_reduec"])
    assert done.exit_code == 1
    assert "no cell has these names" in done.output
    assert '"all_reduce"' in done.output


KILLED = _cell("phalanx", "all_reduce", "small", "killed")
GOOD = Note("PeerDiedError", (CULPRIT,), "died", f"rank {CULPRIT} (pid 9) was killed by SIGKILL (signal 9)", 100.2)


def _run(*notes: Note) -> Run:
    return Run(dict(zip((0, 1, 3), notes, strict=False)), 100.0)


def test_a_cell_is_named_when_all_survivors_say_so() -> None:
    assert find_flaws(KILLED, _run(GOOD, GOOD, GOOD)) == []


@pytest.mark.parametrize(
    ("note", "flaw"),
    [
        (replace(GOOD, culprits=(0, 1, 2, 3)), "rank 3 blames (0, 1, 2, 3)"),
        (replace(GOOD, culprits=()), "rank 3 blames ()"),
        (replace(GOOD, verdict="late"), 'rank 3 has the verdict "late"'),
        (replace(GOOD, text="rank 1 (pid 8) was killed by SIGKILL"), "rank 3 does not say what rank 2 did"),
        (replace(GOOD, text="rank 2 (pid 9) died"), "rank 3 does not say what rank 2 did"),
        (replace(GOOD, moment=101.5), "rank 3 came 1.50 s late"),
        (Note("", (), "", "", 100.2), "rank 3 had no error"),
    ],
)
def test_a_cell_does_not_pass_by_accident(note: Note, flaw: str) -> None:
    assert find_flaws(KILLED, _run(GOOD, GOOD, note)) == [flaw]


def test_nobody_is_blamed_as_long_as_it_is_unknown_who_is_right() -> None:
    cell = _cell("phalanx", "broadcast", "small", "wrong shape")
    told = "  differs  rank 2 (pid 9) called broadcast root 1 float32 (4,), faults/program.py:5"
    known = Note("MismatchError", (CULPRIT,), "different shape", told, 100.2)
    doubt = "\n  unknown  who is right: the calls of only 2 of 4 ranks are known"
    unknown = replace(known, culprits=(), text=told + doubt)
    assert find_flaws(cell, _run(known, unknown, known)) == []
    assert find_flaws(cell, _run(known, replace(known, culprits=()), known)) == ["rank 1 blames ()"]


def test_a_rank_that_says_nothing_is_a_flaw() -> None:
    assert find_flaws(KILLED, _run(GOOD, GOOD)) == ["rank 3 died or hung"]
    assert find_flaws(KILLED, Run({0: GOOD, 1: GOOD, 3: GOOD}, None)) == ["the fault did not come about"]


def test_bystanders_of_a_message_may_blame_the_other_side_but_must_name_the_culprit() -> None:
    cell = _cell("phalanx", "send", "large", "wrong dtype")
    partner = Note(
        "MismatchError", (CULPRIT,), "different message", "the message and the buffer differ (rank 2)", 100.1
    )
    told = "rank 1 (pid 8) raised: the message and the buffer differ (rank 2)"
    bystander = Note("PeerFailedError", (1,), "raised", told, 100.2)
    assert find_flaws(cell, _run(bystander, partner, bystander)) == []
    outsider = replace(bystander, culprits=(0,))
    vague = replace(bystander, text="rank 1 (pid 8) raised: OSError (noticed by rank 2)")
    assert find_flaws(cell, _run(outsider, replace(partner, culprits=(0,)), vague)) == [
        "rank 0 blames (0,)",
        "rank 1 blames (0,)",
        "rank 3 does not say what rank 2 did",
    ]


def test_a_harmless_fault_must_leave_all_ranks_alone() -> None:
    cell = _cell("phalanx", "send", "small", "extra call")
    well = Note("", (), "", "", 100.2)
    run = Run(dict.fromkeys(range(4), well), 100.0)
    assert find_flaws(cell, run) == []
    assert find_flaws(cell, Run({**run.notes, 2: GOOD}, 100.0)) == ["rank 2 raised PeerDiedError"]


def test_the_table_has_a_mark_for_each_form_and_a_dash_where_a_fault_has_no_meaning() -> None:
    run = _run()
    outcomes = [
        CellResult(_cell("phalanx", "reduce", "small", "wrong op"), run, (), 0.1),
        CellResult(_cell("phalanx", "reduce", "large", "wrong op"), run, ("a flaw",), 0.1),
        CellResult(_cell("torch", "barrier", "small", "killed"), run, (), 0.1),
        CellResult(_cell("phalanx", "send", "small", "extra call"), run, (), 0.1),
    ]
    assert write_table(outcomes).splitlines() == [
        "               killed  wrong  extra",
        "                       op     call",
        "reduce         -       +x     -",
        "torch barrier  +       -      -",
        "send           -       -      o",
    ]
    assert summarise(outcomes) == "fault matrix: 2 of 3 named"


def test_every_operation_meets_every_fault_that_means_something_for_it() -> None:
    rows: dict[tuple[str, str], set[str]] = {}
    for cell in list_cells():
        rows.setdefault((cell.operation.door, cell.operation.name), set()).add(cell.fault.name)
    everywhere = {"killed", "raised", "exited", "exited hard", "stalled", "skipped call", "extra call", "other order"}
    assert rows["phalanx", "barrier"] == everywhere
    assert rows["phalanx", "all_gather"] == everywhere | {"wrong shape", "wrong dtype"}
    assert rows["torch", "broadcast"] == everywhere | {"wrong shape", "wrong dtype", "wrong root"}
    assert rows["phalanx", "reduce"] == everywhere | {"wrong shape", "wrong dtype", "wrong op", "wrong root"}
    assert len(rows) == 26

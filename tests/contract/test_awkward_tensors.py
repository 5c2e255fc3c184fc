"""Every kind of tensor in every operation, through both doors: right, or refused before anything is sent.

A pair of ranks does hundreds of cases. Each is announced before it runs, so that a signal names its case, and after
each the group must still work. `pytest -s` shows how many there were.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.checks import same
from tests.contract.awkward_calls import (
    OPERATIONS,
    Case,
    GroupDoor,
    Operation,
    TorchDoor,
    as_bytes,
    clone,
    joined,
)
from tests.contract.awkward_tensors import (
    REFUSED,
    RIGHT,
    Kind,
    dtype_kinds,
    layout_kinds,
    numbers,
    other_kinds,
)
from tests.run_ranks import run_ranks

SMALL, CHUNKED = (6, 2), (150_000, 2)
KINDS = {"dtypes": dtype_kinds, "layouts": layout_kinds, "others": other_kinds}

pytestmark = [pytest.mark.host_memory("has ranks of its own"), pytest.mark.slow]


class Announcer:
    """Keeps the name of the case that runs where the test finds it after a rank has died."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / f"rank-{rank}", os.O_CREAT | os.O_WRONLY, 0o600)

    def announce(self, case: str) -> None:
        os.pwrite(self._file, case.encode().ljust(200), 0)


def expected_of(kind: Kind, operation: Operation, *, is_torch: bool) -> str:
    outcome = kind.filled if operation.is_filled else kind.given
    if outcome == RIGHT and operation.is_reduced:
        outcome = kind.reduced if operation.is_filled or kind.dtype is not torch.float32 else kind.given
    if is_torch and kind.through_torch == "view_as_real":
        return (
            "either"  # torch gives us the parts of complex numbers: others can be added up, lazy conjugates not moved
        )
    if is_torch and kind.through_torch == "all_reduce" and operation.name.startswith("all_reduce"):
        return "either"  # torch adds sparse tensors up
    return outcome


def plain_values(kind: Kind, shape: tuple[int, ...], door: Any) -> list[torch.Tensor]:
    return [numbers(kind.dtype, shape, rank).to(door.device) for rank in range(door.size)]


def held_values(kind: Kind, operation: Operation, plain: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what each rank's awkward tensor holds; one of several blocks holds that of all."""
    if operation.is_filled or kind.given == REFUSED:
        return plain
    if operation.blocks == 1:
        return [kind.values_of(kind.make(clone(values))) for values in plain]
    held = kind.values_of(kind.make(joined(plain)))
    return [held[rank * len(plain[0]) :][: len(plain[0])] for rank in range(len(plain))]


def run_case(door: Any, kind: Kind, operation: Operation, shape: tuple[int, ...], *, is_torch: bool) -> str:
    plain = plain_values(kind, shape, door)
    values = held_values(kind, operation, plain)
    expected = expected_of(kind, operation, is_torch=is_torch)
    is_added = operation.is_reduced and expected != REFUSED and kind.given == RIGHT
    total = door.reduced(values) if is_added else values[0]
    is_refused = kind.given == REFUSED
    case = Case(door, values, total, is_refused, is_refused or (is_torch and kind.through_torch is not None))
    whole = joined(plain) if operation.blocks > 1 else clone(plain[door.rank])

    def call(tensor: torch.Tensor) -> None:
        check(kind, tensor, operation.run(case, tensor))

    try:
        if kind.inside is not None:
            kind.inside(whole, call)
        else:
            call(kind.make(whole))
    except AssertionError as error:
        return f"wrong: {error}"
    except phalanx.UsageError as error:
        return REFUSED if expected != RIGHT else f"refused: {error}"
    except phalanx.PhalanxError as error:  # the peer's tensor was refused
        return REFUSED if expected != RIGHT and "refused" in str(error) else f"failed: {error}"
    except Exception as error:  # torch's own refusal, before it came to us
        is_expected = is_torch and expected != RIGHT
        return REFUSED if is_expected else f"failed: {type(error).__name__}: {error}"
    if expected == REFUSED and not is_unseen(operation, door):
        return "accepted, and should have been refused"
    return RIGHT


def check(kind: Kind, awkward: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for came, wanted in pairs:
        values = kind.values_of(came) if came is awkward else came
        same(as_bytes(values), as_bytes(wanted), str(values.dtype))


def is_unseen(operation: Operation, door: Any) -> bool:
    """Tell whether this rank has no awkward tensor in the operation, and need not wait for the one that has."""
    if operation.name == "broadcast into":
        return bool(door.rank == 0)
    return operation.name in ("reduce", "gather into", "broadcast from", "scatter from") and door.rank != 0


def still_works(door: Any) -> str:
    """Meet, and hear of a refusal that this rank has not waited for; then add up."""
    try:
        door.barrier()
    except phalanx.PhalanxError as error:
        if "refused" not in str(error):
            return f"after it, the barrier failed: {error}"
    tensor = torch.full((3,), float(door.rank + 1), device=door.device)
    door.sum(tensor)
    return "" if tensor.tolist() == [3.0, 3.0, 3.0] else f"after it, all_reduce gave {tensor.tolist()}"


def run_cases(kinds: str, door_name: str, shape: tuple[int, ...], folder: Path) -> tuple[Counter[str], list[str]]:
    """Run all cases of one table on this rank; return how many came out how, and what went wrong."""
    warnings.simplefilter("ignore")
    group = phalanx.connect(timeout_s=20)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("phalanx", init_method=store, rank=group.rank, world_size=group.size)
    door: Any = GroupDoor(group) if door_name == "group" else TorchDoor()
    announcer = Announcer(folder, group.rank)
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for kind in KINDS[kinds]():
        if shape == CHUNKED and kind.small_only:
            continue
        for operation in OPERATIONS:
            name = f"{door_name}: {operation.name}, {kind.name}, {shape}"
            announcer.announce(name)
            outcome = run_case(door, kind, operation, shape, is_torch=door_name == "torch")
            after = still_works(door)
            outcomes[outcome if outcome in (RIGHT, REFUSED) else "wrong"] += 1
            failures += [f"{name}: {told}" for told in (outcome, after) if told not in (RIGHT, REFUSED, "")]
            if after:
                return outcomes, failures
    dist.destroy_process_group()
    return outcomes, failures


@pytest.mark.parametrize("shape", [SMALL, CHUNKED], ids=["small", "chunked"])
@pytest.mark.parametrize("door", ["group", "torch"])
@pytest.mark.parametrize("kinds", KINDS)
def test_every_kind_of_tensor_is_moved_right_or_refused(
    kinds: str, door: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    if shape == CHUNKED and kinds != "layouts":
        pytest.skip("its way through the engine does not depend on the size")
    try:
        results = run_ranks("process", 2, run_cases, kinds, door, shape, tmp_path, timeout_s=200)
    except phalanx.PhalanxError as error:
        cases = [(tmp_path / f"rank-{rank}").read_text().strip() for rank in range(2)]
        pytest.fail(f"a rank died or hung in one of {cases}: {error}")
    outcomes: Counter[str] = sum((result[0] for result in results), Counter())
    print(f"\nawkward tensors, {kinds}, {door}, {shape}: {outcomes.total() // 2} cases on 2 ranks, {dict(outcomes)}")
    failures = [failure for result in results for failure in result[1]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])

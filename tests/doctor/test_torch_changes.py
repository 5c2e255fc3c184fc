"""The doctor lists what phalanx changes in torch, and how that is undone."""

from __future__ import annotations

from phalanx.doctor import torch_changes
from phalanx.patches import Patch, changes
from tests.virtual_gpus.in_child import in_child


def _patch(name: str, undo: str) -> Patch:
    return Patch(name, "now", "a test", "always", undo)


def test_each_way_to_undo_changes_is_named() -> None:
    patches = [
        _patch("torch.a", "StandIn.undo()"),
        _patch("torch.b", "never: no way"),
        _patch("torch.c", "never: no way"),
    ]
    described = torch_changes.describe(patches)
    assert described == "torch.a (undone by StandIn.undo()); torch.b, torch.c (never undone: no way)"
    assert torch_changes.describe([]) == "nothing"


def test_many_names_are_counted() -> None:
    patches = [_patch(f"torch._C.name{number}", "x()") for number in range(20)] + [_patch('torch.table["key"]', "x()")]
    assert torch_changes.describe(patches) == "21 names of torch, torch._C (undone by x())"


@in_child
def test_changes_are_found_on_every_occasion() -> None:
    assert [patch.name for patch in torch_changes.at_import() if "rendezvous" in patch.name]
    assert "torch.distributed.monitored_barrier" in [patch.name for patch in torch_changes.for_groups()]
    threads = [patch.name for patch in torch_changes.for_threads()]
    assert "torch.distributed.distributed_c10d._world" in threads
    assert not {patch.name for patch in changes()} & {"torch.distributed.distributed_c10d._world"}  # over by now
    assert "torch.distributed.ProcessGroupGloo" in [patch.name for patch in torch_changes.for_stand_ins()]

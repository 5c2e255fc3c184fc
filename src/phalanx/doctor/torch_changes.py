"""What phalanx changes in torch, and when: each probe makes the changes of one occasion, in its own process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from phalanx.doctor.finding import Answer, Probe
from phalanx.errors import UsageError
from phalanx.patches import Patch, changes

_MOST_NAMES = 12
_PAGE = "docs/internals/torch-patches.md"


def at_import() -> list[Patch]:
    """Import torch, and return what is changed then."""
    import torch  # noqa: F401  # runs phalanx.torch_backend.autoload

    return list(changes())


def for_groups() -> list[Patch]:
    """Return what is changed when the first group is made."""
    from phalanx.torch_backend.torch_functions import teach_torch

    return _changed_by(teach_torch)


def for_gpus() -> list[Patch]:
    """Return what is changed when the first operation on a real GPU starts."""
    from phalanx.torch_backend.cuda_order import CudaStreamOrder

    return _changed_by(CudaStreamOrder().join_synchronize)


def for_threads() -> list[Patch]:
    """Return what is changed while ranks are threads."""
    from phalanx.torch_backend.thread_worlds import thread_worlds

    with thread_worlds():
        return [patch for patch in changes() if "threads" in patch.when]


def for_stand_ins() -> list[Patch]:
    """Return what is changed while stand-ins are installed: those that this machine can have."""
    from phalanx.stand_in import stand_in_for

    def install() -> None:
        stand_in_for("gloo")
        stand_in_for("mpi")
        try:
            stand_in_for("nccl")
        except UsageError:
            return  # it needs GPUs, real or virtual ones

    return _changed_by(install)


def for_virtual_gpus() -> list[Patch]:
    """Return what is changed when virtual GPUs are set up.

    Raises:
        UsageError: This machine has real ones, or the library of virtual ones has not been built.
    """
    from phalanx.virtual_gpus.building import find_builds
    from phalanx.virtual_gpus.set_up import virtual_devices

    if find_builds()[0] is None:
        raise UsageError(f"not built on this machine yet; {_PAGE} lists the names")
    return _changed_by(lambda: virtual_devices(1, face="cuda"))


def _changed_by(act: Callable[[], object]) -> list[Patch]:
    before = list(changes())
    act()
    return [patch for patch in changes() if patch not in before]


def _ask(find: Callable[[], list[Patch]]) -> Answer:
    try:
        patches = find()
    except UsageError as error:
        return Answer("absent", str(error).partition("\n")[0])
    return Answer("ok", describe(patches), count=len({patch.name for patch in patches}))


def describe(patches: Sequence[Patch]) -> str:
    """Say which names are changed, and how that is undone."""
    by_undo = dict[str, dict[str, None]]()
    for patch in patches:
        by_undo.setdefault(patch.undo, {})[patch.name] = None
    parts = [f"{_listed(list(names))} ({_undone(undo)})" for undo, names in by_undo.items()]
    return "; ".join(parts) or "nothing"


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    owners = dict.fromkeys(name.partition("[")[0].rpartition(".")[0] for name in names)
    return f"{len(names)} names of {', '.join(sorted(owners))}"


def _undone(undo: str) -> str:
    return f"never undone:{undo.removeprefix('never:')}" if undo.startswith("never:") else f"undone by {undo}"


PROBES = tuple(
    Probe(f"changes: {occasion}", functools.partial(_ask, find), timeout_s, is_needed=False)
    for occasion, find, timeout_s in (
        ("import", at_import, 5.0),
        ("groups", for_groups, 30.0),
        ("threads", for_threads, 5.0),
        ("stand-ins", for_stand_ins, 30.0),
        ("GPUs", for_virtual_gpus, 30.0),
    )
)

"""`./dev patches`: the page that lists what phalanx changes in torch."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from phalanx.patches import Patch

_HEAD = """# What phalanx changes in torch

Many programs use `torch.distributed` and `torch.cuda` without knowing phalanx. Where torch offers no other way to serve
them, phalanx replaces a name inside torch. Every change is made through `phalanx.patches`, which knows the reason for
it, how long it is needed, and how it is undone. `phalanx doctor --patches` shows the changes of your installation.

This page lists the changes in torch {version} without CUDA. `./dev patches` writes it, and a test compares it with the
code. Unless an item says otherwise, a change is needed until torch offers another way. Newer versions of torch have
some more names, which are in `torch_backend/versions.py`. With virtual GPUs and Triton, phalanx also changes
`triton.runtime.driver._create_driver`.
"""


@click.command()
def patches() -> None:
    """Print docs/internals/torch-patches.md: every name of torch that phalanx changes, when and why."""
    click.echo(write_page(), nl=False)


def write_page() -> str:
    """Make all changes, in processes of their own, and return the page."""
    import torch

    from phalanx.launch.spawn import spawn

    collected: list[Patch] = []
    for face in ("cuda", "virtual"):
        (found,) = spawn(collect, ranks=1, args=(face,), timeout_s=300)
        collected += [patch for patch in found if patch not in collected]
    version = ".".join(torch.__version__.split(".")[:2])
    return "\n".join([_HEAD.format(version=version), *_sections(collected)]).rstrip("\n") + "\n"


def collect(face: Literal["cuda", "virtual"]) -> list[Patch]:
    """Make all changes in this process, and return them."""
    from phalanx.doctor import torch_changes
    from phalanx.patches import changes
    from phalanx.virtual_gpus.set_up import virtual_devices

    found = [*torch_changes.at_import(), *torch_changes.for_groups()]
    for _ in range(2):  # the second time, the backend is registered
        found += torch_changes.for_threads()
    virtual_devices(1, face=face)
    if face == "cuda":
        importlib.import_module("torch._inductor.compile_fx")
        found += [*torch_changes.for_gpus(), *torch_changes.for_stand_ins()]
    return list(dict.fromkeys([*found, *changes()]))


def _sections(patches: Sequence[Patch]) -> list[str]:
    """Write a section for each occasion, with a paragraph for each way to undo changes and an item for each reason."""
    lines = []
    for when in dict.fromkeys(patch.when for patch in patches):
        lines += [f"## When {when}", ""]
        of_occasion = [patch for patch in patches if patch.when == when]
        for undo in dict.fromkeys(patch.undo for patch in of_occasion):
            how = f"never undone: {undo[7:]}" if undo.startswith("never: ") else f"undone by {undo}"
            lines += [f"These changes are {how}.", ""]
            lines += [*_items([patch for patch in of_occasion if patch.undo == undo]), ""]
    return lines


def _items(patches: Sequence[Patch]) -> list[str]:
    names_of: dict[tuple[str, str], dict[str, None]] = {}
    for patch in patches:
        names_of.setdefault((patch.why, patch.until), {})[f"`{patch.name}`"] = None
    lines = []
    for (why, until), names in names_of.items():
        end = "" if until == "always" else f" Needed until {until}."
        text = f"- {why.rstrip('.')}: {', '.join(names)}.{end}"
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines

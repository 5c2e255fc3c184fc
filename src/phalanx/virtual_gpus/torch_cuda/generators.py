"""Random numbers: torch.cuda.default_generators, which the functions of torch.cuda.random work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from phalanx.patches import Names

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library


def names(library: Library) -> Names:
    """Return the default generator of each device."""
    with library.exposed_generators():
        generators = tuple(torch.Generator(torch.device("cuda", index)) for index in range(library.num_devices))
    return {"torch.cuda.default_generators": generators}

"""phalanx.testing.unittest in the place of torch.testing._internal.common_distributed.

For suites whose base classes come from torch itself, such as FSDPTest or DTensorTestBase: those import torch's module,
and can't be told by changing a line.
"""

from __future__ import annotations

import importlib
import sys

from phalanx.errors import UsageError

REPLACED = "torch.testing._internal.common_distributed"


def take_torchs_place() -> None:
    """Let every later import of torch's module get phalanx's. Call it first of all, in conftest.py for example.

    Raises:
        UsageError: Torch's module is loaded already: classes derived from it would stay as they are.
    """
    ours = importlib.import_module("phalanx.testing.unittest")
    if sys.modules.get(REPLACED, ours) is not ours:
        raise UsageError(f"take_torchs_place: {REPLACED} is imported already; call this before anything imports it")
    sys.modules[REPLACED] = ours
    parent, _, name = REPLACED.rpartition(".")
    setattr(importlib.import_module(parent), name, ours)

"""Replace torch.testing._internal.common_distributed with phalanx.testing.unittest.

This is for suites whose base classes come from torch itself, such as FSDPTest or DTensorTestBase: torch's own code
imports torch's module there, so the suite can't change the import.
"""

from __future__ import annotations

import sys

from torch.testing import _internal

from phalanx.errors import UsageError

REPLACED = "torch.testing._internal.common_distributed"


def take_torchs_place() -> None:
    """Make every later import of torch's module get phalanx's. Call it first, for example in conftest.py.

    Raises:
        UsageError: Torch's module is loaded already: classes derived from it would stay as they are.
    """
    from phalanx.testing import unittest as ours  # the package that holds this module: it can't be imported above

    if sys.modules.get(REPLACED, ours) is not ours:
        raise UsageError(f"take_torchs_place: {REPLACED} is imported already; call this before anything imports it")
    sys.modules[REPLACED] = ours
    setattr(_internal, REPLACED.rpartition(".")[2], ours)

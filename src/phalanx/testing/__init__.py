"""Tests on several ranks: a pytest plugin, unittest classes, and a world of ranks to use by hand.

from phalanx.testing import assert_same_on_ranks, faults

@pytest.mark.ranks(4)
def test_all_ranks_agree(group):
    assert_same_on_ranks(train(group))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing import faults, unittest
    from phalanx.testing.asserts import assert_ranks_raise, assert_same_on_ranks, expect_on
    from phalanx.testing.world import World, ranks

_HOMES = {
    "phalanx.testing.asserts": ("assert_ranks_raise", "assert_same_on_ranks", "expect_on"),
    "phalanx.testing.world": ("World", "ranks"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["World", "assert_ranks_raise", "assert_same_on_ranks", "expect_on", "faults", "ranks", "unittest"]
_MODULES = ("faults", "unittest")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: loading the pytest plugin must cost nothing."""
    if name in _MODULES:
        return importlib.import_module(f"phalanx.testing.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'phalanx.testing' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__

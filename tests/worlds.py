"""The worlds that a test of groups runs in: ranks of every kind, in several numbers."""

from __future__ import annotations

import pytest

from tests.run_ranks import KINDS


def worlds(*sizes: int) -> pytest.MarkDecorator:
    """Run a test on that many ranks of every kind; conftest.py marks all but one number of each kind slow."""
    return pytest.mark.ranks(sizes, kind=KINDS)


every_world = worlds(1, 2, 3, 4)

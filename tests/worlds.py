"""The worlds that a test of groups runs in: ranks of every kind, in several numbers."""

from __future__ import annotations

import pytest

from tests import battery


def worlds(*sizes: int) -> pytest.MarkDecorator:
    """Run a test on that many ranks of every kind; conftest.py marks all but one number of each kind slow."""
    return battery.chosen().mark(sizes)


every_world = worlds(1, 2, 3, 4)

from __future__ import annotations

import pytest

from tests.stress.amounts import Amount


@pytest.fixture
def amount(request: pytest.FixtureRequest) -> Amount:
    """Choose between a number for every run and one for `make stress`."""
    is_whole = request.config.getoption("--whole-stress")
    return lambda *, quick, whole: whole if is_whole else quick

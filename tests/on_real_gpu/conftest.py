from __future__ import annotations

from collections.abc import Iterator

import pytest

from phalanx.testing.rank_hooks import runner_of


@pytest.fixture(autouse=True, scope="module")
def _ranks_end_with_their_module(request: pytest.FixtureRequest, _nothing_is_left_behind: None) -> Iterator[None]:
    """Have ranks stay between tests, and be gone before somebody looks for what is left."""
    yield
    runner_of(request.node).close()

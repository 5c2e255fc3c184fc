"""A rank that reaches the end of a test while others still wait for it is the one that the report names."""

from __future__ import annotations

import re

import pytest

import phalanx
from tests.testing.inner_runs import InnerRuns

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["process", "pool", "thread"])
def test_the_report_names_the_rank_that_was_done(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(4)
        def test_fewer(group, rank):
            group.barrier()
            if rank != 1:
                group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    lines = result.outlines
    at = next(number for number, line in enumerate(lines) if line.startswith("rank 1 of 4: "))
    title = (
        r"rank 1 of 4: reached the end of the test after barrier #1, \S+:8 while ranks 0, 2-3 still waited for it; .*"
    )
    assert re.fullmatch(title, lines[at])
    assert re.fullmatch(r"ranks 0, 2-3: waiting in barrier #2, \S+:10", lines[at + 1])
    assert "PeerLeftError" not in "\n".join(lines)


def test_a_world_outside_pytest_raises_the_error_that_names_it() -> None:
    from phalanx.testing import ranks

    def fewer() -> None:
        group = phalanx.connect()
        group.barrier()
        if group.rank != 1:
            group.barrier()

    with ranks(2) as world, pytest.raises(phalanx.PeerLeftError) as caught:
        world.run(fewer)
    assert caught.value.culprits == (1,)
    assert "rank 1 (pid " in str(caught.value)


def test_a_test_that_expects_the_error_is_left_alone(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import phalanx

        @pytest.mark.ranks(2)
        def test_leaves(group, rank):
            if rank == 0:
                with pytest.raises(phalanx.PeerLeftError, match="has reached the end of the test"):
                    group.barrier()
        """
    )
    result.assert_outcomes(passed=1)

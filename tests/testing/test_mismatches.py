"""Which rank a test's report names if ranks make different calls."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

# The others come when ranks 0 and 1 have noticed the mismatch.
_TEST = """
@pytest.mark.ranks(4)
def test_mismatch(group, rank):
    while rank > 1 and group.fault() is None:
        time.sleep(0.005)
    if rank {odd}:
        group.broadcast(torch.ones(4), 1)
    else:
        group.broadcast(torch.ones(3), 1)
    group.barrier()  # the root hears of the mismatch here
"""


@pytest.fixture(autouse=True)
def _long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "40")


def test_the_odd_rank_is_named_even_if_others_come_late(inner: InnerRuns, kind: str) -> None:
    result = inner.run(_TEST.format(odd="== 0"), f"--ranks-kind={kind}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank 0 of 4: MismatchError: broadcast #1 *", "*ranks 2-3: waiting in broadcast #1, *test_inner.py:*"]
    )
    result.stdout.no_fnmatch_line("*- rank* [123]* -*")


def test_two_against_two_are_all_named(inner: InnerRuns, kind: str) -> None:
    result = inner.run(_TEST.format(odd="% 2 == 0"), f"--ranks-kind={kind}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*unknown  who is right: *"])
    result.stdout.fnmatch_lines(["*- ranks 0, 2 -*"])
    result.stdout.no_fnmatch_line("*: waiting in *")

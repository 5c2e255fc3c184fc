"""Every system call of a job fails, one at a time: the outcome is success, or an error in words on every rank.

The job is a spawn() whose ranks use groups, or torch.distributed, or a run of pytest.

Nothing is left behind, nobody waits for a timeout, and no signal ends a rank. `--failing-calls all` tries every error
at every use of every call; without it, each call fails at its first use in two ways and at its last in another.
"""

from __future__ import annotations

import errno
import faulthandler
from collections.abc import Iterator

import pytest

from tests.system_calls.cases import Case, judge, select, select_lasting
from tests.system_calls.page import LAUNCHER, NEWBORN, ZYGOTE, find_compiler
from tests.system_calls.team import Team

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler for the library that makes calls fail"),
]
_LONGEST_CASE_S = 120
_ROLES = {"launcher": LAUNCHER, "zygote": ZYGOTE, "starting ranks": NEWBORN, "rank 0": 0, "rank 1": 1}
_SAMPLE = {"launcher": 3, "rank 0": 5, "rank 1": 7}  # the other doors share most calls: one case in so many


_DRIVER = "tests.system_calls.driver"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    team = Team(tmp_path_factory.mktemp("failing_calls"), _DRIVER, "groups")
    yield team
    team.close()


@pytest.fixture(scope="module")
def torch_team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    team = Team(tmp_path_factory.mktemp("failing_calls_of_torch"), _DRIVER, "torch")
    yield team
    team.close()


@pytest.fixture(scope="module")
def pytest_team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    team = Team(tmp_path_factory.mktemp("failing_calls_of_pytest"), "tests.system_calls.pytest_driver")
    yield team
    team.close()


@pytest.mark.parametrize("role", list(_ROLES))
def test_a_call_that_fails_ends_in_words_on_every_rank(
    role: str, team: Team, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = select(_ROLES[role], team.counts(_ROLES[role]), is_full=_is_full(request))
    _try_all(cases, team, role, capsys)


@pytest.mark.parametrize("role", ["rank 0", "rank 1"])
def test_a_call_that_fails_for_good_ends_in_words_on_every_rank(
    role: str, team: Team, capsys: pytest.CaptureFixture[str]
) -> None:
    _try_all(select_lasting(_ROLES[role], team.counts(_ROLES[role])), team, role, capsys)


@pytest.mark.parametrize("role", ["rank 0", "rank 1"])
def test_a_call_that_fails_under_torch_ends_in_words_on_every_rank(
    role: str, torch_team: Team, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = list(select(_ROLES[role], torch_team.counts(_ROLES[role]), is_full=_is_full(request)))
    _try_all(iter(cases if _is_full(request) else cases[:: _SAMPLE[role]]), torch_team, role, capsys)


@pytest.mark.parametrize("role", ["launcher", "rank 0", "rank 1"])
def test_a_call_that_fails_under_pytest_ends_in_words(
    role: str, pytest_team: Team, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = list(select(_ROLES[role], pytest_team.counts(_ROLES[role]), is_full=_is_full(request)))
    _try_all(iter(cases if _is_full(request) else cases[:: _SAMPLE[role]]), pytest_team, role, capsys)


def _is_full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--failing-calls") == "all")


def _try_all(cases: Iterator[Case], team: Team, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    complaints, num_cases, num_struck = [], 0, 0
    for case in cases:
        # The limit is for a case, not for all. In the place of sys.stderr is something without a descriptor: capsys.
        faulthandler.dump_traceback_later(_LONGEST_CASE_S, exit=True, file=2)
        result = team.run(case)
        num_cases += 1
        if result is None:
            complaints.append(f"{case}: no answer\n{team.last_words()}")
            continue
        num_struck += result["struck"] > 0
        complaints += [f"{case}: {wrong}" for wrong in judge(case, result)]
    with capsys.disabled():
        print(f"\n{role}: {num_cases} cases, {num_struck} reached", end=" ")
    assert not complaints, "\n".join(complaints)
    assert num_struck > num_cases * 0.7, "most cases must come to the call that fails"


def test_the_end_of_ranks_is_noticed_though_every_wake_up_is_lost(team: Team) -> None:
    """A byte tells the process that ranks are forked from that a signal came: the kernel may have no memory for it."""
    result = team.run(Case(ZYGOTE, "write", errno.ENOMEM, 1, count=1 << 30))
    assert result is not None, team.last_words()
    assert result["struck"] > 0
    assert result["error"]["kind"] == "", result["error"]
    assert result["left"] == []

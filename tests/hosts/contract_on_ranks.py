"""Run tests of tests/contract on the ranks of a job: contract_on_ranks.py RESULT PLAN [PYTEST'S ARGUMENTS].

Each rank runs pytest, without the ranks plugin, and all run the same tests in the same order. A test gets a new group of
some of the ranks; the others wait. PLAN says which, in JSON: for each number of ranks that a test may be for, the members.
The first rank writes to the file RESULT what became of each test: the words of those on which it failed, by their ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx

_ROOT = Path(__file__).parents[2]
_TEST_S = 40.0  # of an operation in a test
_MEETING_S = 200.0  # of all ranks after a test
_EVERY_NUMBER = {1, 2, 3, 4}

# What groups over hosts refuse, in words; test_refusals.py checks the words.
REFUSED = {
    "test_symmetric_tensors.py": "a tensor in memory that all ranks share can't be on several hosts",
    "test_merge.py": "merge is for ranks of one host",
}


class ContractOnRanks:
    """A plugin of pytest that lends tests the ranks of a job."""

    def __init__(self, plan: dict[int, list[int]]) -> None:
        self._plan = plan
        self._world: Any = phalanx.connect()
        self._world.set_timeout(_MEETING_S)
        self._reports: list[pytest.TestReport] = []
        self.results: list[dict[str, Any]] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        for name in ("ranks", "slow", "many_cases", "host_memory"):
            config.addinivalue_line("markers", name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marker = metafunc.definition.get_closest_marker("ranks")
        if "group" not in metafunc.fixturenames or marker is None:
            return
        sizes = marker.args[0] if not isinstance(marker.args[0], int) else (marker.args[0],)
        chosen = [size for size in self._plan if size in sizes or set(sizes) >= _EVERY_NUMBER]
        metafunc.parametrize("group", chosen, indirect=True, ids=[f"{size} ranks" for size in chosen])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests of other things, and what is refused."""
        kept = [item for item in items if "group" in getattr(item, "callspec", _Nothing).params]
        items[:] = [item for item in kept if item.path.name not in REFUSED]

    @pytest.fixture
    def group(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        members = self._plan[request.param]
        if self._world.rank not in members:
            pytest.skip("not a member")
        group = self._world.split(members, name="world")
        group.set_timeout(_TEST_S)
        yield group
        if any(report.failed for report in self._reports):
            group.abort("the test has failed")
        group.close()

    @pytest.fixture
    def rank(self, group: Any) -> int:
        return int(group.rank)

    @pytest.fixture
    def world_size(self, group: Any) -> int:
        return int(group.size)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._reports.clear()
        result = yield
        words = "\n".join(report.longreprtext for report in self._reports if report.failed)
        all_words = self._world.all_gather_object(words)
        failed = {rank: text for rank, text in enumerate(all_words) if text}
        self.results.append({"test": item.nodeid, "failed": failed})
        return result


class _Nothing:
    params: dict[str, object] = {}  # noqa: RUF012 (nobody writes to it)


def main(result: str, plan: str, *arguments: str) -> int:
    plugin = ContractOnRanks({int(size): members for size, members in json.loads(plan).items()})
    options = [
        "-q",
        "-p",
        "no:phalanx",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:timeout",
        "-p",
        "no:asyncio",
    ]
    options += ["--noconftest", "-c", "/dev/null", "--rootdir", str(_ROOT)]
    code = int(pytest.main([*options, *arguments], plugins=[plugin]))
    if phalanx.connect().rank == 0:
        Path(result).write_text(json.dumps(plugin.results, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

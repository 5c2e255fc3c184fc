"""Run tests that need ranks on the ranks of a job: tests_on_ranks.py RESULT PLAN [PYTEST'S ARGUMENTS].

Each rank runs pytest, without the ranks plugin, and all run the same tests in the same order. For each test, some of
the ranks get a new group, or a new default process group of torch; the others wait. PLAN says which, in JSON: for each
number of ranks that a test may be for, the members. The first rank writes to the file RESULT what became of each test:
the words of those on which it failed, by their ranks.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from tests import reference
from tests.hosts.selection import Selection, options_of_pytest

_TEST_S = 40.0  # of an operation in a test
_MEETING_S = 200.0  # of all ranks after a test


class TestsOnRanks:
    """A plugin of pytest that lends tests the ranks of a job."""

    def __init__(self, plan: dict[int, list[int]], result: Path) -> None:
        self._plan = plan
        self._result = result
        self._world: Any = phalanx.connect()
        self._world.set_timeout(_MEETING_S)
        self._reports: list[pytest.TestReport] = []
        self._store: Any = None
        names = self._world.all_gather_object(socket.gethostname())
        self._hosts = [[rank for rank, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
        self._results: list[dict[str, Any]] = []

    @property
    def num_ranks(self) -> int:
        """The ranks of the job."""
        return int(self._world.size)

    @pytest.fixture(autouse=True)
    def members(self, request: pytest.FixtureRequest) -> list[int]:
        """The ranks that run this test; the others skip it."""
        members = self._plan[request.param]
        if self._world.rank not in members:
            pytest.skip("not a member")
        return members

    @pytest.fixture
    def group(self, members: list[int]) -> Iterator[Any]:
        if members == sorted(members):
            group = self._world.split(members, name="world")
        else:  # all ranks, in another order
            group = self._world.split_by_color(0, members.index(self._world.rank), name="world")
        group.set_timeout(_TEST_S)
        reference.HOSTS[:] = [
            [members.index(rank) for rank in host if rank in members]
            for host in self._hosts
            if set(host) & set(members)
        ]
        yield group
        if any(report.failed for report in self._reports):
            group.abort("the test has failed")
        group.close()

    @pytest.fixture
    def process_group(self, members: list[int], request: pytest.FixtureRequest) -> Iterator[Any]:
        """torch's default process group; each with keys of its own in the store of the job."""
        from phalanx.torch_backend.untyped import dist

        store = dist.PrefixStore(f"test {len(self._results)}", self._own_store())
        place = {"rank": members.index(self._world.rank), "world_size": len(members)}
        backend = request.node.get_closest_marker("ranks").kwargs.get("backend", "phalanx")
        dist.init_process_group(backend, store=store, **place)
        yield dist.group.WORLD
        if dist.is_initialized():
            dist.destroy_process_group()

    def _own_store(self) -> Any:
        if self._store is None:
            from phalanx.torch_backend.untyped import dist

            self._store, _, _ = next(iter(dist.rendezvous("env://")))
        return self._store

    @pytest.fixture
    def rank(self, members: list[int]) -> int:
        return members.index(self._world.rank)

    @pytest.fixture
    def world_size(self, members: list[int]) -> int:
        return len(members)

    @pytest.fixture
    def tmp_path(self) -> Path:
        """One for all ranks."""
        folder = self._result.parent / f"test-{len(self._results)}"
        folder.mkdir(exist_ok=True)
        return folder

    @pytest.fixture
    def rank_tmp_path(self, tmp_path: Path, rank: int) -> Path:
        folder = tmp_path / f"rank-{rank}"
        folder.mkdir(exist_ok=True)
        return folder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._reports.clear()
        result = yield
        words = "\n".join(report.longreprtext for report in self._reports if report.failed)
        all_words = self._world.all_gather_object(words)
        failed = {rank: text for rank, text in enumerate(all_words) if text}
        self._results.append({"test": item.nodeid, "failed": failed})
        if self._world.rank == 0:  # after each test: there may be no end
            self._result.write_text(json.dumps(self._results, indent=1))
        return result


def main(result: str, plan: str, *arguments: str) -> int:
    members = {int(size): ranks for size, ranks in json.loads(plan).items()}
    plugin = TestsOnRanks(members, Path(result))
    selection = Selection(members, plugin.num_ranks)
    return int(pytest.main([*options_of_pytest(), *arguments], plugins=[plugin, selection]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

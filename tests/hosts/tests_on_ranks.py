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

_ROOT = Path(__file__).parents[2]
_TEST_S = 40.0  # of an operation in a test
_MEETING_S = 200.0  # of all ranks after a test
_EVERY_NUMBER = {1, 2, 3, 4}
_FIXTURES = ("group", "process_group")

# What groups over hosts refuse, and the words of the refusals.
REFUSED = {
    "test_symmetric_tensors.py": "a tensor in memory that all ranks share can't be on several hosts",
    "test_merge.py": "merge is for ranks of one host",
}
LEFT_OUT = {
    "test_a_group_knows_its_ranks_size_and_name": "groups are parts of a world here, so they have other numbers",
    "test_receiving_from_anybody_tells_the_source": "recv from any rank is refused",
    "test_all_reduce_of_halves_rounds_once": "halves are rounded once for each host",
    "test_a_sum_is_rounded_once": "so are float8 types",
    "test_every_float32_is_narrowed_as_torch_would": "and so is zero, which may lose its sign",
    "test_a_split_names_the_member_that_does_not_come": "the error names the key that was not written",
}
_CALLS_CONNECT = {"test_gloo_oracle.py"}  # which makes groups of all ranks


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

    def pytest_configure(self, config: pytest.Config) -> None:
        for name in ("ranks", "slow", "many_cases", "host_memory"):
            config.addinivalue_line("markers", name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marker = metafunc.definition.get_closest_marker("ranks")
        if marker is None or not set(_FIXTURES) & set(metafunc.fixturenames):
            return
        sizes = marker.args[0] if not isinstance(marker.args[0], int) else (marker.args[0],)
        chosen = [size for size in self._plan if size in sizes or set(sizes) >= _EVERY_NUMBER]
        metafunc.parametrize("members", chosen, indirect=True, ids=[f"{size} ranks" for size in chosen])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests of other things, and what is refused."""
        items[:] = [item for item in items if isinstance(item, pytest.Function) and self._is_wanted(item)]

    def _is_wanted(self, item: pytest.Function) -> bool:
        size = item.callspec.params.get("members") if hasattr(item, "callspec") else None
        if size is None or item.path.name in REFUSED or item.originalname in LEFT_OUT:
            return False
        return item.path.name not in _CALLS_CONNECT or size == self._world.size

    @pytest.fixture(autouse=True)
    def members(self, request: pytest.FixtureRequest) -> list[int]:
        """The ranks that run this test; the others skip it."""
        members = self._plan[request.param]
        if self._world.rank not in members:
            pytest.skip("not a member")
        return members

    @pytest.fixture
    def group(self, members: list[int]) -> Iterator[Any]:
        group = self._world.split(members, name="world")
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
    def process_group(self, members: list[int]) -> Iterator[Any]:
        """torch's default process group; each with keys of its own in the store of the job."""
        from phalanx.torch_backend.untyped import dist

        store = dist.PrefixStore(f"test {len(self._results)}", self._own_store())
        place = {"rank": members.index(self._world.rank), "world_size": len(members)}
        dist.init_process_group("phalanx", store=store, **place)
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
    options = ["-q", "--noconftest", "-c", "/dev/null", "--rootdir", str(_ROOT)]
    for name in ("phalanx", "cacheprovider", "randomly", "timeout", "asyncio"):
        options += ["-p", f"no:{name}"]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

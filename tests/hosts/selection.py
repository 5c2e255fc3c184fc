"""Which tests of the contract run on the ranks of a job over hosts, and why the others do not.

This is the one list of what a group over hosts does not do as a group on one host does. As a program, it prints the
functions of the tests that run on any of some jobs, and of the others: selection.py [[RANKS, PLAN], ...].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Files of tests of what groups over hosts refuse, and the words of the refusals.
REFUSED = {
    "test_symmetric_tensors.py": "a tensor in memory that all ranks share can't be on several hosts",
    "test_merge.py": "merge is for ranks of one host",
}
LEFT_OUT = {
    "test_a_group_knows_its_ranks_size_and_name": "groups are parts of a world here, and have another class",
    "test_receiving_from_anybody_tells_the_source": "recv from any rank is refused",
    "test_all_reduce_of_halves_rounds_once": "halves are rounded once for each host",
    "test_a_sum_is_rounded_once": "so are float8 types",
    "test_every_float32_is_narrowed_as_torch_would": "and so is zero, which may lose its sign",
    "test_every_kind_of_tensor_is_moved_right_or_refused": "it starts ranks of its own",
    "test_several_worlds_live_side_by_side": "it starts ranks of its own",
    "test_what_names_no_reduction_is_refused": "it needs no ranks",
    "test_the_current_group_is_restored_after_an_exception": "it is for one rank",
    "test_timeouts_are_seconds_or_timedeltas": "it is for one rank",
}

_EVERY_NUMBER = {1, 2, 3, 4}
_FIXTURES = {"group", "process_group", "world_size", "rank"}


class Selection:
    """A plugin of pytest that gives tests their members, and leaves out those that can't run.

    Args:
        plan: For each number of ranks that a test may be for, the members.
        num_ranks: Of the job. A test that calls connect() gets all of them.

    Attributes:
        chosen: The functions of the tests that run.
        others: Those of the tests that do not.
    """

    def __init__(self, plan: dict[int, list[int]], num_ranks: int) -> None:
        self._plan = plan
        self._num_ranks = num_ranks
        self.chosen = set[tuple[str, str]]()
        self.others = set[tuple[str, str]]()

    def pytest_configure(self, config: pytest.Config) -> None:
        for name in ("ranks", "slow", "many_cases", "host_memory"):
            config.addinivalue_line("markers", name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marker = metafunc.definition.get_closest_marker("ranks")
        if marker is None:
            return
        sizes = marker.args[0] if not isinstance(marker.args[0], int) else (marker.args[0],)
        chosen = [size for size in self._plan if size in sizes or set(sizes) >= _EVERY_NUMBER]
        if not _FIXTURES & set(metafunc.fixturenames) or "test_gloo_oracle" in metafunc.module.__name__:
            chosen = [size for size in chosen if size == self._num_ranks]
        metafunc.parametrize("members", chosen, indirect=True, ids=[f"{size} ranks" for size in chosen])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that are not for these ranks, and what is refused."""
        for item in list(items):
            if _is_wanted(item):
                self.chosen.add(_function_of(item))
            else:
                self.others.add(_function_of(item))
                items.remove(item)


def _function_of(item: pytest.Item) -> tuple[str, str]:
    return item.path.name, getattr(item, "originalname", item.name)


def _is_wanted(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.path.name in REFUSED or item.originalname in LEFT_OUT:
        return False
    return hasattr(item, "callspec") and isinstance(item.callspec.params.get("members"), int)


def options_of_pytest() -> Sequence[str]:
    """Return what pytest needs to run tests of this repository without their plugins and settings."""
    options = ["-q", "--noconftest", "-c", "/dev/null", "--rootdir", str(ROOT)]
    for name in ("phalanx", "cacheprovider", "randomly", "timeout", "asyncio"):
        options += ["-p", f"no:{name}"]
    return options


class _Members:
    """In the place of the plugin that has ranks."""

    @pytest.fixture(autouse=True)
    def members(self) -> None:
        """Nobody: nothing runs."""


def _collect(jobs: Sequence[tuple[int, dict[str, list[int]]]]) -> None:
    chosen, others = set[tuple[str, str]](), set[tuple[str, str]]()
    for num_ranks, plan in jobs:
        selection = Selection({int(size): members for size, members in plan.items()}, num_ranks)
        code = pytest.main(
            [*options_of_pytest(), "-qq", "--collect-only", str(ROOT / "tests/contract")],
            plugins=[selection, _Members()],
        )
        assert code == 0
        chosen |= selection.chosen
        others |= selection.others
    print(json.dumps({"chosen": sorted(chosen), "others": sorted(others - chosen)}))


if __name__ == "__main__":
    _collect(json.loads(sys.argv[1]))

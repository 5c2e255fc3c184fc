"""Who shares a host is found out by trying."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from phalanx.errors import UsageError
from phalanx.groups import hosts
from phalanx.groups.hosts import HostTable, find_hosts
from phalanx.launch.board import nobody_wrote


class _Board:
    """A board in the memory of one process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, text: str) -> None:
        with self._changed:
            self._texts[key] = text
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> str:
        return self.get_many([key], timeout_s)[0]

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._texts for key in keys), timeout_s):
                raise nobody_wrote(keys, timeout_s)
            return [self._texts[key] for key in keys]

    def add(self, key: str, amount: int = 1) -> int:
        raise NotImplementedError


def _find(size: int) -> list[HostTable]:
    board, found = _Board(), dict[int, HostTable]()
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: find_hosts(board, rank, size, 60)}))
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def test_ranks_that_reach_each_other_share_a_host() -> None:
    assert _find(4) == [HostTable(((0, 1, 2, 3),))] * 4


def test_ranks_whose_sockets_do_not_answer_are_on_other_hosts_though_all_else_is_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "_answers", lambda address: False)  # as between clones of a virtual machine
    assert _find(3) == [HostTable(((0,), (1,), (2,)))] * 3


def test_a_process_that_sees_another_one_that_does_not_see_it_is_on_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = iter(("system:container", "system:host"))
    monkeypatch.setattr(hosts, "_surroundings", lambda: next(names))
    assert _find(2) == [HostTable(((0,), (1,)))] * 2


def test_a_table_selects_the_members_of_a_group_in_their_order() -> None:
    table = HostTable(((0, 2, 4), (1, 3, 5)))
    assert table.select([5, 4, 0]) == HostTable(((0,), (1, 2)))
    assert table.select([1, 3]) == HostTable(((0, 1),))
    assert table.host_of(3) == 1
    assert table.size == 6


def test_a_table_survives_json() -> None:
    table = HostTable(((0, 2), (1,)))
    assert HostTable.from_json(table.to_json()) == table


@pytest.mark.parametrize("value", [None, [], [0], [[0], [0]], [[1], [0]], [[0, 2]], [["0"]], [[1, 0]], [[0], []]])
def test_what_is_no_table_is_refused(value: object) -> None:
    if value == []:
        assert HostTable.from_json(value).size == 0
        return
    with pytest.raises(UsageError):
        HostTable.from_json(value)

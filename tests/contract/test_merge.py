from __future__ import annotations

import secrets
import threading
from typing import Any

import pytest
import torch

import phalanx
from tests.checks import equal, same
from tests.run_ranks import Kind, every_kind, run_ranks
from tests.worlds import worlds


@worlds(4)
def test_two_groups_become_one_in_a_fixed_order(group: Any) -> None:
    place = f"test {group.nonce.hex()}"
    part = group.split([0, 2] if group.rank % 2 == 0 else [1, 3])
    for number in range(3):
        merged = part.merge(place, 4, name=f"merged {number}", timeout_s=20)
        assert (merged.size, merged.name, merged.timeout_s) == (4, f"merged {number}", 20.0)
        assert merged.ranks == (0, 1, 2, 3)
        gathered = torch.zeros(4, dtype=torch.int64)
        merged.all_gather_single(gathered, torch.tensor([group.rank]))
        same(gathered, torch.tensor([0, 2, 1, 3]))
        assert gathered[merged.rank] == group.rank


@pytest.mark.host_memory("starts ranks of its own")
@every_kind
def test_groups_of_different_worlds_merge(kind: Kind) -> None:
    """Two spawns that know only the name of the place."""

    def program(place: str, label: str) -> list[tuple[str, int]]:
        group: Any = phalanx.connect()
        merged = group.merge(place, 3, timeout_s=20)
        equal(merged.name, f"merge:{place}")
        found: list[tuple[str, int]] = merged.all_gather_object((label, group.rank))
        equal(found[merged.rank], (label, group.rank))
        merged.barrier()
        return found

    place = f"test {secrets.token_hex(8)}"
    results: dict[str, list[list[tuple[str, int]]]] = {}

    def start(label: str, ranks: int) -> None:
        results[label] = run_ranks(kind, ranks, program, place, label)

    threads = [threading.Thread(target=start, args=pair) for pair in (("a", 1), ("b", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (order,) = {tuple(found) for found in results["a"] + results["b"]}
    assert sorted(order) == [("a", 0), ("b", 0), ("b", 1)]
    assert order.index(("b", 0)) + 1 == order.index(("b", 1)), "the ranks of a group stay together"


@worlds(2)
def test_a_merge_that_lacks_ranks_times_out_everywhere(group: Any) -> None:
    place = f"test {group.nonce.hex()}"
    with pytest.raises(phalanx.OperationTimeoutError) as caught:
        group.merge(place, 5, timeout_s=0.3)
    assert place in str(caught.value)
    assert "timed out after 0.3 s" in str(caught.value)
    assert "2 of 5 ranks came to merge" in str(caught.value)


@worlds(2)
def test_groups_that_disagree_on_the_size_are_refused(group: Any) -> None:
    place = f"test {group.nonce.hex()}"
    part = group.split([group.rank])
    with pytest.raises(phalanx.UsageError):
        part.merge(place, 2 + group.rank, timeout_s=1)

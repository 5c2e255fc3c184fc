"""Groups over hosts: the operations, regrouping, messages, and what each rank says when something goes wrong."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from phalanx.errors import (
    AbortedError,
    MismatchError,
    OperationTimeoutError,
    PeerDiedError,
    PeerFailedError,
    PeerLeftError,
    UsageError,
)
from phalanx.groups.hybrid import HybridGroup
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.groups.hosts.pretended import run_on_pretended_hosts

_TABLES = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3, 4), (1,), (2, 5))]
_COUNTS = [1, 1000, 100_000, 1_200_000]


def _operations(group: HybridGroup) -> None:
    size, rank = group.size, group.rank
    for count in _COUNTS:
        total = size * (size + 1) / 2
        tensor = torch.full((count,), float(rank + 1))
        group.all_reduce(tensor)
        assert (tensor == total).all()
        tensor = torch.full((count,), float(rank + 1))
        work = group.all_reduce(tensor, "avg", async_op=True)
        work.wait()
        assert torch.allclose(tensor, torch.tensor(total / size))
        tensor = torch.full((count,), rank, dtype=torch.int16)
        group.reduce(tensor, size - 1)
        assert (tensor == (sum(range(size)) if rank == size - 1 else rank)).all()
        tensor = torch.full((count,), rank)
        group.broadcast(tensor, 1)
        assert (tensor == 1).all()
        expected = torch.arange(size).view(size, 1)
        table = torch.empty(size * count)
        group.all_gather_single(table, torch.full((count,), float(rank)))
        assert (table.view(size, count) == expected).all()
        part = torch.empty(count)
        group.reduce_scatter_single(part, torch.arange(size).repeat_interleave(count).float())
        assert (part == rank * size).all()
        group.all_to_all_single(table, torch.full((size * count,), float(rank)))
        assert (table.view(size, count) == expected).all()
    parts = [torch.empty(2) for _ in range(size)] if rank == 2 else None
    group.gather(parts, torch.full((2,), float(rank)), 2)
    assert parts is None or [int(part[0]) for part in parts] == list(range(size))
    group.scatter(torch.empty(2), parts, 2)
    assert group.all_gather_object({"rank": rank}) == [{"rank": other} for other in range(size)]
    group.barrier()


@pytest.mark.slow
@pytest.mark.parametrize("hosts", _TABLES)
def test_operations(hosts: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    run_on_pretended_hosts(_operations, tmp_path, hosts)


def test_groups_of_one_host_share_memory_and_others_go_over_hosts(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        assert (group.hosts, group.ranks) == (((0, 1), (2, 3)), (0, 1, 2, 3))
        here, across = group.split_by_color(group.rank // 2), group.split_by_color(group.rank % 2)
        assert type(here) is SharedMemoryGroup
        assert isinstance(across, HybridGroup)
        assert across.hosts == ((0,), (1,))
        for part in (here, across):
            ones = torch.ones(1)
            part.all_reduce(ones)
            assert ones.item() == 2
        some = group.split([3, 0])
        assert (some is None) == (group.rank in (1, 2))
        if some is not None:
            assert some.ranks == (0, 3)
            some.barrier()
        with pytest.raises(UsageError, match="can't merge"):
            group.merge("somewhere", 8)

    run_on_pretended_hosts(body, tmp_path)


def test_the_wire_is_that_of_torch_even_if_a_stand_in_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", object())
    run_on_pretended_hosts(lambda group: group.barrier(), tmp_path)


def test_messages(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        right, left = (group.rank + 1) % 4, (group.rank - 1) % 4
        for count in (0, 1, 3000, 100_000):
            given, got = torch.full((count,), float(group.rank)), torch.empty(count)
            works = [group.recv(got, left, 3, async_op=True), group.send(given, right, 3, async_op=True)]
            for work in works:
                work.wait()
            assert (got == left).all()
        across = 3 - group.rank
        many = [torch.empty(10_000) for _ in range(5)]
        receives = [group.recv(each, across, async_op=True) for each in many]
        for number in range(5):
            group.send(torch.full((10_000,), float(number)), across)
        for receive in reversed(receives):
            receive.wait()
        assert [each[0].item() for each in many] == [0, 1, 2, 3, 4]
        with pytest.raises(UsageError, match="can't receive from any rank"):
            group.recv(torch.empty(1))
        if group.rank == 0:
            group.send(torch.ones(3), 3)
        if group.rank == 3:
            with pytest.raises(MismatchError, match=r"rank 0 sent 12 bytes of torch\.float32"):
                group.recv(torch.empty(2), 0)
        group.barrier()

    run_on_pretended_hosts(body, tmp_path)


def test_hosts_that_call_different_things_see_both_calls(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        with pytest.raises(MismatchError) as raised:
            group.all_reduce(torch.ones(10 + group.rank // 2))
        text = str(raised.value)
        own, other = (10, 11) if group.rank < 2 else (11, 10)
        host = 1 - group.rank // 2
        assert f"called all_reduce sum float32 ({own},)" in text
        ranks = f"ranks {2 * host}, {2 * host + 1}"
        assert f"differs  host {host} ({ranks}) called all_reduce sum float32 ({other},)" in text
        assert text.count("hosts/test_hybrid.py:") == 2

    run_on_pretended_hosts(body, tmp_path)


def test_a_mismatch_inside_a_host_is_told_to_the_others(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        with pytest.raises(MismatchError, match=r"rank 3.*int32|rank 2.*float32"):
            group.broadcast(torch.ones(5, dtype=torch.int32 if group.rank == 3 else torch.float32))

    run_on_pretended_hosts(body, tmp_path)


def test_a_rank_that_exchanges_other_sizes_than_all_others_is_named(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        each = torch.ones(20 if group.rank == 2 else 16)
        with pytest.raises(MismatchError) as raised:
            group.all_to_all([torch.empty_like(each) for _ in range(4)], [each] * 4)
        error = raised.value
        if group.rank < 2:
            assert (error.culprits, error.verdict) == ((2,), "different shape")
        if group.rank != 2:
            assert "  differs  rank 2 (pid " in str(error)
            assert "called all_to_all float32 (20,), hosts/test_hybrid.py:" in str(error)

    run_on_pretended_hosts(body, tmp_path)


def test_a_refused_call_is_told_to_all_hosts_and_the_group_goes_on(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        for refuser in range(4):
            for _ in range(3):
                if group.rank == refuser:
                    with pytest.raises(UsageError):
                        group.all_reduce(None)  # type: ignore[call-overload]
                else:
                    with pytest.raises(PeerFailedError, match=rf"rank {refuser} .*had its arguments refused"):
                        group.all_reduce(torch.ones(100_000))
            ones = torch.ones(3)
            group.all_reduce(ones)
            assert ones[0] == 4

    run_on_pretended_hosts(body, tmp_path)


@pytest.mark.parametrize("victim", [2, 3])
def test_a_killed_rank_is_named_on_all_hosts(victim: int, tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()

        def reduce_again_and_again() -> None:
            for _ in range(100):
                group.all_reduce(torch.ones(1_000_000))

        with pytest.raises(PeerDiedError, match=f"rank {victim}") as raised:
            reduce_again_and_again()
        limit_s = 1 if victim == 3 else 3  # nobody speaks for a host whose leader is dead, and no agent is here
        assert time.monotonic() - start < limit_s + 2, raised.value

    run_on_pretended_hosts(body, tmp_path, statuses={victim: -signal.SIGKILL})


def test_a_late_rank_is_named_on_all_hosts(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank == 3:
            time.sleep(2)
            os._exit(0)
        with pytest.raises(OperationTimeoutError, match="rank 3 did not come") as raised:
            group.barrier(timeout_s=0.5)
        assert "is now at hosts/test_hybrid.py:" in str(raised.value)

    run_on_pretended_hosts(body, tmp_path)


@pytest.mark.parametrize("late", [2, 3])  # the first rank of its host, for which its neighbour waits; and another
def test_a_split_names_the_member_that_does_not_come(late: int, tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        if group.rank != late:
            with pytest.raises(OperationTimeoutError) as raised:
                group.split([0, 1, 2, 3], timeout_s=0.3)
            text = str(raised.value)
            assert text.startswith('split 0,1,2,3 of group "world": timed out after 0.3 s; '), text
            assert f"; rank {late} did not come\n" in text, text
            assert raised.value.culprits == (late,)
        group.barrier()

    run_on_pretended_hosts(body, tmp_path)


def test_an_abort_is_told_to_all_hosts(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank == 2:
            group.abort("enough")
        with pytest.raises(AbortedError, match="rank 2 aborted the group: enough"):
            group.barrier()

    run_on_pretended_hosts(body, tmp_path)


def test_a_host_that_leaves_is_named(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank >= 2:
            return
        with pytest.raises(PeerLeftError, match="host 1"):
            group.barrier()

    run_on_pretended_hosts(body, tmp_path)


@pytest.mark.parametrize("victims", [(3,), (2,), (2, 3)])
def test_the_survivors_go_on_in_a_smaller_group(victims: tuple[int, ...], tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerDiedError):
            group.barrier()
        rest = group.shrink(timeout_s=3)
        assert rest.ranks == tuple(rank for rank in range(4) if rank not in victims)
        assert isinstance(rest, HybridGroup) == (len(victims) == 1)
        ones = torch.ones(100_000)
        rest.all_reduce(ones)
        assert ones[0] == 4 - len(victims)
        rest.close()

    run_on_pretended_hosts(body, tmp_path, statuses=dict.fromkeys(victims, -signal.SIGKILL))

"""Groups over hosts: the operations, regrouping, messages, and what each rank says when something goes wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from phalanx.diagnosis import formatting
from phalanx.engine.facts import far_rank
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
            with pytest.raises(MismatchError, match=r"rank 0 on host 0 called send float32 \(3,\)"):
                group.recv(torch.empty(2), 0)
        group.barrier()

    run_on_pretended_hosts(body, tmp_path)


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_a_large_message_whose_ends_differ_is_an_error_on_both(first: str, tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        early, late = (0, 3) if first == "sender" else (3, 0)
        if group.rank == late:
            group.recv(torch.empty(1), early, 9)
            time.sleep(0.1)  # the other side is likely to be in its call, but it need not be
        if group.rank == early:
            group.send(torch.empty(1), late, 9)
        for room in (2, 100_001):
            if group.rank == 0:
                with pytest.raises(MismatchError) as raised:
                    group.send(torch.ones(100_000), 3)
                here, there = "rank 0 of 4 sends float32 (100000,)", f"rank 3 on host 1 called recv float32 ({room},)"
            if group.rank == 3:
                with pytest.raises(MismatchError) as raised:
                    group.recv(torch.empty(room), 0)
                here = f"rank 3 of 4 receives float32 ({room},)"
                there = "rank 0 on host 0 called send float32 (100000,)"
            if group.rank in (0, 3):
                assert f"here     {here}, hosts/test_hybrid.py:" in str(raised.value)
                assert f"differs  {there}, hosts/test_hybrid.py:" in str(raised.value)
                assert raised.value.culprits == (3 - group.rank,)
        group.barrier()

    run_on_pretended_hosts(body, tmp_path)


def test_a_message_is_in_the_journal_once(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        peer = (group.rank + 2) % 4
        for count in (10, 100_000):
            work = group.send(torch.ones(count), peer, 5, async_op=True)
            group.recv(torch.empty(count), peer, 5)
            work.wait()
        messages = group.records(group.rank % 2).messages
        assert [entry.operation for entry in messages] == ["send", "recv"] * 2
        assert {far_rank(entry.root) for entry in messages} == {far_rank(entry.peer) for entry in messages} == {peer}
        assert all(entry.end_ns and "test_hybrid.py" in entry.location for entry in messages)
        assert formatting.title(messages[0]) == f"send to rank {peer} on another host tag 5"

    run_on_pretended_hosts(body, tmp_path)


def test_a_rank_that_is_late_because_of_a_message_is_shown_in_it(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank == 3:
            with pytest.raises(OperationTimeoutError):
                group.recv(torch.empty(1), 0)
        else:
            with pytest.raises(OperationTimeoutError) as raised:
                group.barrier(timeout_s=1)
            if group.rank == 2:
                assert "waits in recv from rank 0, " in str(raised.value)

    run_on_pretended_hosts(body, tmp_path)


def test_a_message_that_does_not_come_leaves_the_group_usable(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        if group.rank == 3:
            with pytest.raises(OperationTimeoutError) as raised:
                group.recv(torch.empty(1), 0, timeout_s=0.2)
            assert "waiting for rank 0 on host 0: it has not sent it" in str(raised.value)
            assert "let rank 0 call send(destination=3) with this tag" in str(raised.value)
        group.barrier()
        if group.rank == 0:
            group.send(torch.full((1,), 7.0), 3)
        if group.rank == 3:
            got = torch.empty(1)
            group.recv(got, 0)
            assert got.item() == 7

    run_on_pretended_hosts(body, tmp_path)


def test_a_small_message_arrives_though_its_sender_has_closed(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        if group.rank == 0:
            group.send(torch.arange(5), 3)
        if group.rank == 3:
            got = torch.empty(5, dtype=torch.int64)
            group.recv(got, 0)
            assert got.tolist() == [0, 1, 2, 3, 4]
            with pytest.raises(PeerLeftError, match="rank 0 on host 0 closed the group"):
                group.recv(got, 0)

    run_on_pretended_hosts(body, tmp_path)


def test_asynchronous_messages_have_no_threads_of_python(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        before = threading.active_count()
        peer = (group.rank + 2) % 4
        tensors = [torch.full((50_000,), float(number)) for number in range(20)]
        got = [torch.empty(50_000) for _ in tensors]
        works = [group.recv(each, peer, async_op=True) for each in got]
        works += [group.send(each, peer, async_op=True) for each in tensors]
        assert threading.active_count() == before
        for work in works:
            work.wait()
        assert all(torch.equal(one, other) for one, other in zip(tensors, got, strict=True))
        assert works[0].source_rank() == peer

    run_on_pretended_hosts(body, tmp_path)


def test_ctrl_c_ends_a_receive(tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        if group.rank == 3:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                group.recv(torch.empty(1), 0)
        group.barrier()

    run_on_pretended_hosts(body, tmp_path)


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_killed_rank_ends_messages(count: int, tmp_path: Path) -> None:
    def body(group: HybridGroup) -> None:
        group.barrier()
        if group.rank == 3:
            group.recv(torch.empty(1), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        if group.rank == 0:
            group.send(torch.ones(1), 3)
        works = [group.recv(torch.empty(count), 3, async_op=True)] if group.rank == 0 else []
        with pytest.raises(PeerDiedError, match="rank 3"):
            works[0].wait() if works else group.recv(torch.empty(count), (group.rank + 2) % 4)

    run_on_pretended_hosts(body, tmp_path, statuses={3: -signal.SIGKILL})


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

"""Ranks that die, leave, raise or abort: every peer hears of it within a second."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from tests.checks import Stopwatch, equal, leave_note, raised, same
from tests.leftovers import wait_until
from tests.run_ranks import Kind, every_kind, read_notes, run_ranks
from tests.worlds import worlds

Call = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _patient_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Survivors end by themselves; spawn must not end them while we measure."""
    monkeypatch.setenv("PHALANX_GRACE_S", "20")


def _wait_async(group: Any) -> None:
    group.all_reduce(torch.ones(3), async_op=True).wait()


def _part_of(group: Any) -> Any:
    return group.split(range(group.size))


WAITS: dict[str, Call] = {
    "barrier": lambda g: g.barrier(),
    "small-all_reduce": lambda g: g.all_reduce(torch.ones(3)),
    "large-all_reduce": lambda g: g.all_reduce(torch.ones(500_000)),
    "asynchronous-all_reduce": _wait_async,
    "all_to_all": lambda g: g.all_to_all_single(torch.ones(g.size), torch.ones(g.size)),
    "recv-from-it": lambda g: g.recv(torch.ones(3), 1),
    "recv-from-anybody": lambda g: g.recv(torch.ones(3)),
    "large-send-to-it": lambda g: g.send(torch.ones(500_000), 1),
    "objects": lambda g: g.all_gather_object("x"),
    "split": _part_of,
    "empty": lambda g: g.empty(10),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wait", WAITS, ids=str)
def test_a_killed_rank_is_named_with_its_signal_within_a_second(tmp_path: Path, wait: str, ranks: int) -> None:
    def program(call: Call) -> None:
        group: Any = phalanx.connect(timeout_s=3)
        group.barrier()
        if group.rank == 1:
            leave_note(tmp_path, 1, (os.getpid(), time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            call(group)
        except phalanx.PhalanxError as error:
            leave_note(tmp_path, group.rank, (error, time.monotonic()))

    with pytest.raises(phalanx.RankFailedError, match=r"rank 1 of \d was killed by SIGKILL \(signal 9\)"):
        run_ranks("process", ranks, program, WAITS[wait])
    survivors = [rank for rank in range(ranks) if rank != 1]
    told = read_notes(tmp_path, range(ranks))
    pid, killed_at = told[1]
    for rank in survivors:
        error, heard_at = told[rank]
        assert type(error) is phalanx.PeerDiedError, repr(error)
        assert heard_at - killed_at < 1
        assert (error.culprits, error.signal, error.exit_code) == ((1,), signal.SIGKILL, None)
        assert f"rank 1 (pid {pid}) was killed by SIGKILL (signal 9)" in str(error).splitlines()[0]
        assert "group.shrink()" in str(error)


@pytest.mark.parametrize(
    ("end", "signal_number", "exit_code", "text"),
    [
        (lambda: os._exit(3), None, 3, "ended with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), 11, None, "was killed by SIGSEGV (signal 11)"),
        (os.abort, 6, None, "was killed by SIGABRT (signal 6)"),
    ],
    ids=["exit", "segmentation-fault", "abort"],
)
def test_every_way_to_die_is_told(
    tmp_path: Path, end: Callable[[], None], signal_number: int | None, exit_code: int | None, text: str
) -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=20)
        group.barrier()
        if group.rank == 1:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            end()
        leave_note(tmp_path, group.rank, raised(phalanx.PeerDiedError, group.barrier))

    with pytest.raises(phalanx.RankFailedError) as failure:
        run_ranks("process", 2, program)
    assert (failure.value.signal, failure.value.exit_code, failure.value.rank) == (signal_number, exit_code, 1)
    error = read_notes(tmp_path, [0])[0]
    assert (error.signal, error.exit_code) == (signal_number, exit_code)
    assert text in str(error).splitlines()[0]


def test_what_a_rank_sent_before_it_died_still_arrives(tmp_path: Path) -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=20)
        if group.rank == 1:
            for number in range(5):
                group.send(torch.full((3,), float(number)), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        for number in range(5):
            tensor = torch.zeros(3)
            group.recv(tensor, 1)
            same(tensor, torch.full((3,), float(number)))
        raised(phalanx.PeerDiedError, group.recv, torch.zeros(3), 1)
        leave_note(tmp_path, 0, "all arrived")

    with pytest.raises(phalanx.RankFailedError):
        run_ranks("process", 2, program)
    assert read_notes(tmp_path, [0]) == {0: "all arrived"}


def test_the_death_of_a_rank_does_not_touch_groups_it_is_not_in(tmp_path: Path) -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=20)
        pair = group.split([0, 2])
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raised(phalanx.PeerDiedError, group.barrier)
        tensor = torch.ones(3)
        pair.all_reduce(tensor)
        same(tensor, torch.full((3,), 2.0))
        leave_note(tmp_path, group.rank, "went on")

    with pytest.raises(phalanx.RankFailedError):
        run_ranks("process", 3, program)
    assert read_notes(tmp_path, [0, 2]) == {0: "went on", 2: "went on"}


def test_the_survivors_go_on_in_a_smaller_group(tmp_path: Path) -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=20)
        group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raised(phalanx.PeerDiedError, group.all_reduce, torch.ones(3))
        smaller = group.shrink()
        equal((smaller.size, smaller.ranks, smaller.name), (3, (0, 2, 3), "world:shrunk"))
        equal(smaller.ranks[smaller.rank], group.rank)
        tensor = torch.full((3,), float(group.rank))
        smaller.all_reduce(tensor)
        same(tensor, torch.full((3,), 5.0))
        if group.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        raised(phalanx.PeerDiedError, smaller.barrier)
        pair = smaller.shrink(timeout_s=10)
        equal((pair.ranks, pair.timeout_s), ((0, 1), 10.0))
        pair.barrier()
        leave_note(tmp_path, group.rank, "went on twice")

    with pytest.raises(phalanx.RankFailedError):
        run_ranks("process", 4, program)
    assert read_notes(tmp_path, [0, 2]) == {0: "went on twice", 2: "went on twice"}


@worlds(3)
def test_a_group_shrinks_without_a_rank_that_left(group: Any) -> None:
    if group.rank == 1:
        group.close()
        return
    with pytest.raises(phalanx.PeerLeftError):
        group.barrier()
    smaller = group.shrink()
    assert smaller.ranks == (0, 2)
    smaller.barrier()


@worlds(3)
def test_a_group_shrinks_without_a_rank_that_hangs(group: Any) -> None:
    other = phalanx.connect()
    if group.rank != 1:
        with pytest.raises(phalanx.OperationTimeoutError):
            group.barrier(timeout_s=0.1)
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.shrink(timeout_s=0.2)
        assert "shrink" in str(caught.value)
        assert "rank 1 did not come" in str(caught.value)
        smaller = group.shrink(without=[1])
        assert smaller.ranks == (0, 2)
        smaller.barrier()
        with pytest.raises(phalanx.UsageError, match="can't leave itself out"):
            group.shrink(without=[group.rank])
        with pytest.raises(phalanx.UsageError, match="rank 3 is outside"):
            group.shrink(without=[3])
    other.barrier()


@worlds(2, 3)
@pytest.mark.parametrize("wait", ["barrier", "large-all_reduce", "recv-from-it", "large-send-to-it"])
def test_a_rank_that_closes_is_named(group: Any, wait: str) -> None:
    other = phalanx.connect()
    group.barrier()
    if group.rank == 1:
        group.close()
    else:
        watch = Stopwatch()
        with pytest.raises(phalanx.PeerLeftError) as caught:
            WAITS[wait](group)
        assert watch.seconds() < 20
        assert "rank 1" in str(caught.value)
        assert "closed the group" in str(caught.value)
        assert caught.value.culprits == (1,)
    other.barrier()


@worlds(2)
def test_a_rank_that_is_done_takes_nothing_from_the_others() -> None:
    """The last operation of a rank that then closes must still end well on its peers, whatever their pace."""
    for _ in range(20):
        group: Any = phalanx.connect(timeout_s=20)
        tensor = torch.ones(60_000)
        group.all_reduce(tensor)
        work = group.send(torch.ones(10), 1 - group.rank, async_op=True)
        group.recv(torch.ones(10), 1 - group.rank)
        group.all_reduce(tensor)
        work.wait()
        group.close()
        same(tensor, torch.full((60_000,), 4.0))


@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "kept-in-a-global"])
def test_a_rank_that_ended_well_does_not_disturb_messages_of_the_others(keep: bool) -> None:
    def program() -> None:
        import builtins

        group: Any = phalanx.connect(timeout_s=10)
        pids = group.all_gather_object(os.getpid())
        group.barrier()
        if group.rank == 1:
            if keep:
                vars(builtins)["kept"] = group
            return
        equal(wait_until(lambda: not Path(f"/proc/{pids[1]}").exists(), 5), True)
        tensor = torch.zeros(200_000)
        if group.rank == 0:
            work = group.recv(tensor, 2, async_op=True)
            raised(phalanx.OperationTimeoutError, work.wait, 0.15)  # long enough to look for dead peers
            group.send(torch.empty(0), 2)
            work.wait()
            same(tensor, torch.ones(200_000))
        else:
            group.recv(torch.empty(0), 0)
            group.send(torch.ones(200_000), 0)

    run_ranks("process", 3, program)


@worlds(2)
def test_closing_waits_for_what_is_under_way(group: Any) -> None:
    tensor = torch.ones(100_000)
    works = [group.all_reduce(tensor, async_op=True) for _ in range(10)]
    group.close()
    assert all(work.done() for work in works)
    same(tensor, torch.full((100_000,), 2.0**10))


@worlds(2, 3, 4)
@pytest.mark.parametrize("wait", ["barrier", "large-all_reduce", "asynchronous-all_reduce", "recv-from-anybody"])
def test_abort_wakes_everybody(group: Any, wait: str) -> None:
    last = group.size - 1
    group.barrier()
    watch = Stopwatch()
    if group.rank == last:
        group.abort("the data is bad")
    else:
        with pytest.raises(phalanx.AbortedError) as caught:
            WAITS[wait](group)
        assert f"rank {last} aborted the group: the data is bad" in str(caught.value)
        assert caught.value.culprits == (last,)
    assert watch.seconds() < 20
    with pytest.raises(phalanx.AbortedError):
        group.barrier()
    with pytest.raises(phalanx.AbortedError):
        group.send(torch.ones(1), (group.rank + 1) % group.size)


@worlds(2)
def test_a_long_reason_in_any_letters_is_cut_between_two_of_them(group: Any) -> None:
    reason = "x" + "漢字é" * 1000
    group.barrier()
    if group.rank == 0:
        group.abort(reason)
    with pytest.raises(phalanx.AbortedError) as caught:
        group.barrier()
    told = re.search("aborted the group: (x[漢字é]*)", str(caught.value))
    assert told is not None
    assert reason.startswith(told[1])
    assert len(told[1].encode()) > 2000


@worlds(2)
def test_a_reason_and_a_name_may_hold_the_name_of_a_file_that_is_no_text(group: Any) -> None:
    file = os.fsdecode(b"data-\xff") + "\0"
    part = group.split([0, 1], name=file)
    assert part.name == "data-\\udcff\\x00"
    part.empty(10)
    if group.rank == 0:
        part.abort(f"{file} is damaged")
    with pytest.raises(phalanx.AbortedError, match=r"aborted the group: data-\\udcff\\x00 is damaged"):
        part.barrier()


@worlds(2)
def test_a_group_may_have_a_long_name_of_any_letters(group: Any) -> None:
    name = "x" + "漢字é" * 100
    part = group.split([0, 1], name=name)
    assert name.startswith(part.name)
    assert len(part.name.encode()) > 250
    part.all_reduce(part.empty(10).fill_(1))
    with pytest.raises(phalanx.PhalanxError, match="漢字"):
        part.all_reduce(torch.ones(1 + group.rank))


@every_kind
def test_a_rank_that_raises_ends_the_others_at_once_with_its_own_error(kind: Kind, tmp_path: Path) -> None:
    """Nobody closes anything; spawn tells the peers what happened."""

    def program() -> None:
        group: Any = phalanx.connect(timeout_s=50)
        part = group.split(range(group.size))
        group.barrier()
        if group.rank == 1:
            raise LookupError("no such thing")
        watch = Stopwatch()
        error = raised(phalanx.PeerFailedError, part.barrier if group.rank == 2 else group.barrier)
        leave_note(tmp_path, group.rank, (error, watch.seconds()))

    with pytest.raises(LookupError, match="no such thing") as failure:
        run_ranks(kind, 3, program)
    assert "raised on rank 1 of 3" in failure.value.__notes__[0]
    for error, seconds in read_notes(tmp_path, [0, 2]).values():
        assert "LookupError: no such thing" in str(error)
        assert seconds < 20, "the groups' own timeout is 50 s"


@pytest.mark.ranks(2)
def test_too_little_memory_for_a_group_is_told_with_what_was_needed() -> None:
    import resource

    from phalanx.engine import create_group_segment

    with open("/proc/self/statm") as numbers:
        used = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
    with pytest.raises(phalanx.SharedMemoryError) as caught:
        create_group_segment("large", 64, crowd=64)
    assert 'not enough shared memory for group "large" of 64 ranks' in str(caught.value)
    assert "needed" in str(caught.value)
    assert "available" in str(caught.value)
    assert "use fewer ranks" in str(caught.value)
    assert caught.value.needed_bytes > 100 << 20
    assert caught.value.available_bytes > 0
    group: Any = phalanx.connect(timeout_s=20)
    group.barrier()

"""Python code and C++ code that call the backend are told apart, however deep the calls inside it are."""

from __future__ import annotations

import _thread
import queue
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.torch_backend import caller, process_group
from phalanx.torch_backend.untyped import dist
from phalanx.torch_backend.work import PendingWork


class _DeeperWork(PendingWork):
    """A work that gets further from its callers than the others: with a frame of the backend in between."""

    get_future = eval("lambda self: super(type(self), self).get_future()", vars(caller))


class _Work:
    """An operation that is under way for ever."""

    def wait(self, timeout_s: Any = None) -> None:
        raise InterruptedError("whoever waits is Python code")

    def done(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def result(self) -> None:
        return None


class _Completer:
    def when_done(self, work: Any, act: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [PendingWork, _DeeperWork])
def test_python_code_that_asks_for_a_future_waits(kind: Any) -> None:
    work = kind(_Work(), [torch.ones(1)], _Completer())
    with pytest.raises(InterruptedError):
        work.get_future()


@pytest.mark.parametrize("kind", [PendingWork, _DeeperWork])
def test_cpp_code_gets_a_pending_future(kind: Any) -> None:
    """DDP's reducer calls the method by its C++ name; here the caller does not name it."""
    work = kind(_Work(), [torch.ones(1)], _Completer())
    ask = getattr(work, "".join(("get_", "future")))
    assert not ask().done()


def test_a_thread_whose_frames_are_all_the_backends_own_has_no_caller() -> None:
    """As a thread of the autograd engine in a method of a Work."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start: Any = eval("lambda answers: answers.put(calling_frame())", vars(caller))
    _thread.start_new_thread(start, (answers,))
    assert answers.get(timeout=10) is None


@pytest.mark.ranks(2)
def test_the_reducer_of_ddp_goes_on_before_its_first_bucket_is_reduced(rank: int) -> None:
    """Rank 1 begins its backward pass only after rank 0 has come to the second bucket."""
    dist.init_process_group("phalanx")
    store = dist.group.WORLD.get_group_store()
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(first, second), bucket_cap_mb=0.001)
    ddp(torch.ones(1, 64)).sum().backward()  # buckets are rebuilt after this
    output = ddp(torch.full((1, 64), 1.0 + rank))
    if rank == 0:
        first.weight.register_hook(lambda _: store.set("second bucket", ""))
    else:
        store.wait(["second bucket"])
    output.sum().backward()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_send_and_recv_block_and_their_asynchronous_forms_do_not(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    launch = process_group.PhalanxProcessGroup._launch

    def note(self: Any, event: str, shown: Any, result: Any, options: Any, *rest: Any) -> Any:
        seen.append(options.is_async)
        return launch(self, event, shown, result, options, *rest)

    dist.init_process_group("phalanx")
    monkeypatch.setattr(process_group.PhalanxProcessGroup, "_launch", note)
    value = torch.ones(4)
    if rank == 0:
        dist.send(value, 1)
        dist.isend(value, 1).wait()
        dist.group.WORLD.send([value], 1, 0).wait()
    else:
        dist.recv(value, 0)
        dist.irecv(value, 0).wait()
        dist.group.WORLD.recv([value], 0, 0).wait()
    assert seen == [False, True, True]
    dist.destroy_process_group()

"""The life of one operation on a device: its states, what it holds, and who gets its error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from phalanx.errors import ClosedError, OperationTimeoutError, PeerDiedError, PhalanxError
from phalanx.groups.stream_order import StreamOrder
from phalanx.torch_backend.operation import GroupErrors, Operation, State, enter_stream


class _Order(StreamOrder):
    """Writes down what it is asked."""

    runs_at_once = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def launch(self, reads: Any, writes: Any, *, operation: str, group_number: int) -> object:
        self.asked.append((len(reads), len(writes)))
        return "position"

    def wait(self, position: object) -> None:
        self.asked.append(position)


class _EngineWork:
    """A Work of the engine that ends when the test says so."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors
        self.is_over = False
        self.error: PhalanxError | None = None

    def wait(self, timeout_s: Any = None) -> None:
        if not self.is_over:
            raise OperationTimeoutError("not yet")
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self.is_over

    def exception(self) -> PhalanxError | None:
        return self.error if self.is_over else None

    def result(self) -> None:
        self.wait()

    def end(self, error: PhalanxError | None = None) -> None:
        self.is_over, self.error = True, error


def _started(errors: GroupErrors, *arguments: Any) -> tuple[Operation, _EngineWork]:
    operation = Operation(_Order(), "position", errors)
    assert (operation.state, operation.done()) == (State.QUEUED, False)
    work: Any = operation.start(lambda *tensors, **_: _EngineWork(*tensors), arguments, None)
    assert (operation.state, operation.done()) == (State.RUNNING, False)
    return operation, work


def test_it_is_done_when_somebody_sees_its_end() -> None:
    operation, work = _started(GroupErrors())
    assert not operation.done()
    with pytest.raises(OperationTimeoutError):
        operation.wait()
    assert operation.state is State.RUNNING  # only the wait has ended
    work.end()
    assert operation.done()
    assert operation.state is State.RUNNING
    operation.wait()
    assert (operation.state, operation.exception()) == (State.DONE, None)


def test_the_engine_keeps_no_memory_of_the_device_after_the_end() -> None:
    given, nested = torch.ones(4), [torch.ones(5), torch.ones(6)]
    operation, work = _started(GroupErrors(), given, nested, 7)
    tensor, listed, number = work.tensors
    assert tensor.data_ptr() == given.data_ptr()
    assert [one.data_ptr() for one in listed] == [one.data_ptr() for one in nested]
    assert number == 7
    work.end()
    operation.finish()
    assert [tensor.numel(), *(one.numel() for one in listed)] == [0, 0, 0]
    assert given.tolist() == [1.0] * 4


def test_a_failure_is_reported_once_to_whoever_waits_or_looks_for_unreported_ones() -> None:
    operation, work = _started(GroupErrors())
    work.end(error := PeerDiedError("rank 1 died"))
    assert operation.unreported() is error
    operation.finish()  # as synchronizing does: it raises nothing
    assert operation.state is State.FAILED
    assert operation.unreported() is error
    with pytest.raises(PeerDiedError):
        operation.wait()
    assert operation.unreported() is None
    with pytest.raises(PeerDiedError):  # whoever asks gets it again
        operation.wait()


def test_a_group_reports_only_the_first_of_the_failures_that_were_under_way() -> None:
    errors = GroupErrors()
    (first, work), (second, other) = _started(errors), _started(errors)
    work.end(PeerDiedError("rank 1 died"))
    other.end(PeerDiedError("rank 1 died"))
    assert first.exception() is not None
    assert second.unreported() is None
    third, later = _started(errors)
    later.end(PeerDiedError("rank 2 died"))
    assert third.unreported() is not None


def test_the_end_of_the_group_by_this_rank_is_no_failure_to_report() -> None:
    operation, work = _started(GroupErrors())
    work.end(ClosedError("closed"))
    assert operation.unreported() is None


def test_the_stream_is_ordered_behind_an_operation_that_has_a_position() -> None:
    order = _Order()
    for position in ("position", None):
        Operation(order, position, GroupErrors()).order_stream()
    assert order.asked == ["position"]


@pytest.mark.parametrize(
    ("event", "is_root", "effects"),
    [
        ("all_reduce", False, (1, 1)),
        ("broadcast", True, (1, 0)),
        ("broadcast", False, (0, 1)),
        ("reduce", True, (1, 1)),
        ("reduce", False, (1, 0)),
        ("scatter", False, (0, 1)),
        ("send", False, (1, 0)),
        ("recv", False, (0, 1)),
        ("recvAnySource", True, (0, 1)),
    ],
)
def test_an_operation_enters_the_stream_with_what_it_reads_and_writes(
    event: str, is_root: bool, effects: tuple[int, int]
) -> None:
    order, tensors = _Order(), [torch.ones(1)]
    assert enter_stream(order, event, tensors, [tensors], is_root=is_root, group_number=0) == "position"
    assert order.asked == [effects]


def test_a_barrier_has_no_position() -> None:
    assert enter_stream(_Order(), "barrier", [], [], is_root=False, group_number=0) is None


def test_it_may_end_while_the_program_makes_fake_tensors() -> None:
    operation, work = _started(GroupErrors(), torch.ones(4))
    work.end()
    with FakeTensorMode():
        operation.wait()
    assert operation.state is State.DONE
    assert work.tensors[0].numel() == 0

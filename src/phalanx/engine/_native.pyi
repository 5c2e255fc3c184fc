from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, overload

from torch import Tensor, dtype

from phalanx.collectives import LocalGroup
from phalanx.engine.facts import EntryFacts, FaultFacts, RankFacts, RankRecords, Trouble
from phalanx.operations import Timeout
from phalanx.reductions import AnyReduceOp

_Hook: TypeAlias = Callable[[str, tuple[object, ...], dict[str, object]], object]

ANY_SOURCE: int
MAX_RANKS: int

class OutOfMemory(MemoryError): ...

def usable_cores(process: str = "/proc/self") -> int: ...
def available_memory_bytes(process: str = "/proc/self") -> int: ...

class ControlGroups:
    def __init__(self, process: str = "/proc/self") -> None: ...
    def memory_limit_bytes(self) -> int | None: ...
    def memory_left_bytes(self) -> int | None: ...
    def processes_left(self) -> int | None: ...
    def cores(self) -> float | None: ...

def num_long_waits() -> int: ...
def forget_long_waits() -> None: ...
def on_long_wait(listener: Callable[[], object] | None) -> None: ...
def signal_thread(pid: int, thread: int, number: int) -> bool: ...
def open_gate(
    judge: Callable[[Tensor], int | str | Tensor],
    int8: dtype,
    uint8: dtype,
    samples: Sequence[tuple[Tensor, int, int, int, bool]],
) -> bool: ...
def admit_device_type(dlpack_type: int, is_driver_memory: bool = False) -> None: ...
def use_cuda(driver: str, compilers: list[str], cache_folder: str, warn: Callable[[str], None]) -> None: ...
def create_segment(label: str, size_bytes: int) -> Segment: ...

class Segment:
    @property
    def descriptor(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def close_descriptor(self) -> None: ...

class GroupSegment:
    def __init__(
        self, name: str, num_ranks: int, crowd: int, cores: int, chunk_bytes: int, eager_bytes: int, bulk_bytes: int
    ) -> None: ...
    @staticmethod
    def attach(descriptor: int, *, is_writable: bool = ...) -> GroupSegment: ...
    @property
    def nonce(self) -> bytes: ...
    def launched(self, rank: int, pid: int, thread: int = ...) -> None: ...
    def fault(self) -> FaultFacts | None: ...
    def records(self, rank: int) -> RankRecords: ...
    @property
    def name(self) -> str: ...
    @property
    def num_ranks(self) -> int: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def close_descriptor(self) -> None: ...
    def declare_dead(self, rank: int, status: int) -> None: ...
    def fail(self, culprit: int, text: str) -> None: ...
    def break_deadlock(self, reporter: int, seq: int, circle: str) -> None: ...
    def wake(self) -> None: ...
    @property
    def is_broken(self) -> bool: ...
    def snapshot(self) -> list[RankFacts]: ...

class TraceFile:
    def __init__(self, path: str, rank: int, limit_bytes: int) -> None: ...
    @property
    def is_truncated(self) -> bool: ...
    def close(self) -> None: ...

class NativeWork:
    def wait(self, timeout_s: float | timedelta | None = None) -> None: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...
    def source_rank(self) -> int | None: ...

class RankEndpoint:
    def __init__(
        self,
        descriptor: int,
        rank: int,
        is_thread: bool,
        timeout_s: float,
        library_folders: Sequence[str],
        explain: Callable[[Trouble], BaseException],
    ) -> None: ...
    timeout_s: float
    def _join_hosts(
        self, descriptor: int, hosts: Sequence[Sequence[int]], rank: int, wire: object, helper: object
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def crowd(self) -> int: ...
    @property
    def is_crowded(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def nonce(self) -> bytes: ...
    @property
    def is_closed(self) -> bool: ...
    # These repeat phalanx.operations and phalanx.reductions: mypy would call a class that inherits from those protocols
    # abstract. It checks in tests/groups/test_types_for_users.py that both agree.
    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None:
        """Reduce the tensor over all ranks, in place."""

    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Reduce a list of tensors over all ranks, in place."""

    @overload
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: int = ...,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Reduce the tensor into the root's; the other ranks' tensors stay as they are."""

    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: int = ...,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def reduce(
        self, tensor: Tensor, root: int = ..., op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None:
        """Copy the root's tensor into every rank's."""

    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None:
        """Copy rank i's input into outputs[i] on every rank; sizes may differ."""

    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None:
        """Copy all inputs into one output, concatenated or stacked."""

    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Copy rank i's input into the root's outputs[i]; other ranks give None."""

    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> NativeWork | None: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Copy the root's inputs[i] into rank i's output; other ranks give None."""

    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> NativeWork | None: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Reduce inputs[i] of all ranks into rank i's output; sizes may differ."""

    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> NativeWork | None: ...
    @overload
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""

    @overload
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def all_to_all(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."""

    @overload
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Exchange rows of one tensor; without splits every rank gets the same number."""

    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> NativeWork | None: ...
    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...) -> None:
        """Wait until every rank is here."""

    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: Literal[True]) -> NativeWork: ...
    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: bool) -> NativeWork | None: ...
    @overload
    def send(
        self,
        tensor: Tensor,
        destination: int,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None:
        """Send the tensor to one rank."""

    @overload
    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> NativeWork: ...
    @overload
    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | None: ...
    @overload
    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> int:
        """Receive into the tensor, from one rank or from any; return the source."""

    @overload
    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> NativeWork: ...
    @overload
    def recv(
        self, tensor: Tensor, source: int | None = ..., tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> NativeWork | int: ...
    def refuse(self, operation: str, text: str) -> BaseException: ...
    def watch(self, ancestor: LocalGroup) -> None: ...
    def _note_end(self) -> None: ...
    def _set_debugged(self, is_debugged: bool) -> None: ...
    def _set_other_threads(self, are_there: bool, run_program: bool) -> None: ...
    @property
    def _debugged_rank(self) -> int: ...
    @property
    def _num_open_handles(self) -> int: ...
    def _trace(self, file: TraceFile | None) -> None: ...
    def records(self, rank: int) -> RankRecords: ...
    def _set_recorder(self, recorder: _Hook | None) -> None: ...
    def _set_interceptor(self, interceptor: _Hook | None) -> None: ...
    def abort(self, reason: str = ...) -> None: ...
    def fail(self, text: str) -> None: ...
    def _die(self, status: int) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...
    def entry(self, rank: int, seq: int) -> EntryFacts | None: ...
    def snapshot(self) -> list[RankFacts]: ...
    def find_dead(self) -> list[int]: ...
    def fault(self) -> FaultFacts | None: ...
    def adopt_symmetric(self, descriptor: int, id: int) -> object: ...

"""torch's ProcessGroup over a phalanx group: every call of c10d, under its old and its new names.

It is a Python subclass: torch's C++ code calls it through the trampolines of ProcessGroup, and torch uses it as the
group itself. Calls with asyncOp=False run on the caller's thread; all others return while the engine works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from phalanx.collectives import LocalGroup
from phalanx.errors import UsageError
from phalanx.groups import stream_order
from phalanx.torch_backend import naming, sparse, versions
from phalanx.torch_backend.call_options import PLAIN, PLAIN_BEHIND, read_options, read_timeout
from phalanx.torch_backend.caller import calling_frame
from phalanx.torch_backend.launching import LaunchingGroup
from phalanx.torch_backend.meeting_places import agree_on_merge_place
from phalanx.torch_backend.monitored_barrier import MonitoredBarrier
from phalanx.torch_backend.other_devices import routed
from phalanx.torch_backend.untyped import Store, dist

Tensor = torch.Tensor


class PhalanxProcessGroup(LaunchingGroup):
    """A torch ProcessGroup; threads may share it."""

    supports_splitting = True

    def __init__(
        self,
        group: LocalGroup,
        store: Store,
        *,
        name: str,
        backend_name: str = "phalanx",
        device_types: Sequence[str] | None = None,
    ) -> None:
        super().__init__(group, store, name=name, backend_name=backend_name, device_types=device_types)
        self._barriers = MonitoredBarrier(group)

    def __repr__(self) -> str:
        return f"<PhalanxProcessGroup {self._group!r}>"

    @property
    def phalanx_group(self) -> LocalGroup:
        """The phalanx group underneath, with all its own calls."""
        return self._group

    # -- reductions

    @routed
    def allreduce(self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce tensors over all ranks, in place."""
        options, listed = read_options(opts, op, None, timeout), _as_list(tensors)
        if len(listed) == 1 and not listed[0].is_sparse:
            call = self._group.all_reduce
            return self._launch("all_reduce", listed, listed, options, call, _plain(listed[0]), options.op)
        return self.allreduce_coalesced(listed, opts, op=op, timeout=timeout)

    @routed
    def allreduce_coalesced(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduce a list of tensors over all ranks, in place."""
        options, listed = read_options(opts, op, None, timeout), _as_list(tensors)
        if any(tensor.is_sparse for tensor in listed):
            call = functools.partial(sparse.all_reduce, self._group)
            return self._launch("all_reduce", listed, listed, options, call, listed, options.op)
        real = [torch.view_as_real(t.detach()) if t.is_complex() else t.detach() for t in listed]
        return self._launch("all_reduce", listed, listed, options, self._group.all_reduce_coalesced, real, options.op)

    @routed
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        *,
        root: int | None = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Reduce tensors into the root's."""
        options, listed = read_options(opts, op, root, timeout), _as_list(tensors)
        call = self._group.reduce
        return self._launch("reduce", listed, listed, options, call, _only(listed, "reduce"), options.root, options.op)

    @routed
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduce inputs[i] of all ranks into rank i's output; several lists at once are possible."""
        options = read_options(opts, op, None, timeout)
        outputs, inputs = _as_list(outputs), _as_lists(inputs)
        if len(outputs) == 1 and len(inputs) == 1:
            call = self._group.reduce_scatter
            return self._launch("reduce_scatter", inputs[0], outputs, options, call, outputs[0], inputs[0], options.op)
        return self._launch_each("reduce_scatter", outputs, options, [
            (self._group.reduce_scatter, output, given, options.op)
            for output, given in _pairs("reduce_scatter", outputs, inputs)
        ])  # fmt: skip

    @routed
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""
        options = read_options(opts, op, None, timeout)
        call = self._group.reduce_scatter_single
        event = "_reduce_scatter_base"
        return self._launch(event, [input], [output], options, call, _plain(output), _plain(input), options.op)

    @routed
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Do what reduce_scatter_single() does, with several tensors."""
        options = read_options(opts)
        return self._launch_each("reduce_scatter_tensor_coalesced", list(outputs), options, [
            (self._group.reduce_scatter_single, _plain(output), _plain(given), options.op)
            for output, given in _pairs("reduce_scatter_single", outputs, inputs)
        ])  # fmt: skip

    # -- copies

    @routed
    def broadcast(
        self, tensors: Any, opts: Any = None, *, root: int | None = None, timeout: timedelta | None = None
    ) -> Any:
        """Copy the root's tensors into every rank's."""
        options, listed = read_options(opts, None, root, timeout), _as_list(tensors)
        call = self._group.broadcast
        return self._launch("broadcast", listed, listed, options, call, _only(listed, "broadcast"), options.root)

    @routed
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Copy rank i's input into outputs[i] on every rank; several lists at once are possible."""
        options = read_options(opts, None, None, timeout)
        lists, inputs = _as_lists(outputs), _as_list(inputs)
        if len(lists) == 1 and len(inputs) == 1:
            call = self._group.all_gather
            return self._launch("all_gather", inputs, [lists[0]], options, call, lists[0], _plain(inputs[0]))
        return self._launch_each("all_gather", lists, options, [
            (self._group.all_gather, outputs_of_one, _plain(given))
            for outputs_of_one, given in _pairs("all_gather", lists, inputs)
        ])  # fmt: skip

    @routed
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Copy rank i's inputs[k] into outputs[i][k] on every rank."""
        options = read_options(opts)
        if len(outputs) != self.size():
            raise UsageError(f"all_gather_coalesced: {len(outputs)} lists of outputs for {self.size()} ranks")
        per_tensor = [[outputs_of_rank[k] for outputs_of_rank in outputs] for k in range(len(inputs))]
        return self._launch_each("all_gather", list(outputs), options, [
            (self._group.all_gather, outputs_of_one, _plain(given))
            for outputs_of_one, given in zip(per_tensor, inputs, strict=True)
        ])  # fmt: skip

    @routed
    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Any = None, *, timeout: timedelta | None = None
    ) -> Any:
        """Copy all inputs into one output, concatenated or stacked."""
        options = read_options(opts, None, None, timeout)
        call = self._group.all_gather_single
        return self._launch("_all_gather_base", [input], [output], options, call, _plain(output), _plain(input))

    @routed
    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """Do what all_gather_single() does, with several tensors."""
        options = read_options(opts)
        return self._launch_each("all_gather_into_tensor_coalesced", list(outputs), options, [
            (self._group.all_gather_single, _plain(output), _plain(given))
            for output, given in _pairs("all_gather_single", outputs, inputs)
        ])  # fmt: skip

    @routed
    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        *,
        root: int | None = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Copy rank i's input into the root's outputs[i]; other ranks give an empty list."""
        options, inputs = read_options(opts, None, root, timeout), _as_list(inputs)
        lists = _as_lists(outputs)
        targets = lists[0] if lists and lists[0] else None
        given = _only(inputs, "gather")
        return self._launch("gather", inputs, lists, options, self._group.gather, targets, given, options.root)

    @routed
    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        *,
        root: int | None = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Copy the root's inputs[i] into rank i's output; other ranks give an empty list."""
        options, outputs = read_options(opts, None, root, timeout), _as_list(outputs)
        lists = _as_lists(inputs)
        given = lists[0] if lists and lists[0] else None
        target = _only(outputs, "scatter")
        shown = given if given is not None else outputs
        return self._launch("scatter", shown, outputs, options, self._group.scatter, target, given, options.root)

    @routed
    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."""
        options, outputs, inputs = read_options(opts), list(outputs), list(inputs)
        return self._launch("all_to_all", inputs, outputs, options, self._group.all_to_all, outputs, inputs)

    @routed
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Any:
        """Exchange rows of one tensor; without splits every rank gets the same number."""
        options = read_options(opts, None, None, timeout)
        splits = (list(output_splits) if output_splits else None, list(input_splits) if input_splits else None)
        call = self._group.all_to_all_single
        return self._launch("all_to_all", [input], [output], options, call, _plain(output), _plain(input), *splits)

    # -- messages

    @routed
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        """Send a tensor to one rank."""
        return self._message("send", _as_list(tensors), self._group.send, dstRank, tag)

    @routed
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        """Receive a tensor from one rank."""
        return self._message("recv", _as_list(tensors), self._group.recv, srcRank, tag)

    @routed
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from whichever rank sends one."""
        return self._message("recvAnySource", _as_list(tensors), self._group.recv, None, tag)

    def _message(self, event: str, tensors: list[Tensor], call: Callable[..., Any], peer: int | None, tag: int) -> Any:
        if peer is not None and not 0 <= peer < self._num_ranks:
            raise UsageError(f"{event}: rank {peer} is outside; the group has ranks 0 to {self._num_ranks - 1}")
        # torch does not say whether the caller waits for the message at once; its blocking functions do.
        options = PLAIN if versions.is_blocking_message(calling_frame()) else PLAIN_BEHIND
        return self._launch(event, tensors, tensors, options, call, _only(tensors, event), peer, tag)

    # -- meeting

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Wait until every rank is here and has finished the work on its current stream."""
        for order in stream_order.registered.values():
            order.finish_stream()
        return self._launch("barrier", [], [], read_options(opts, None, None, timeout), self._group.barrier)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank is here, or say on rank 0 which are not. The group stays usable.

        Raises:
            PhalanxError: Not all came.
        """
        self._barriers.run(timeout, wait_all_ranks)

    # -- groups

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Note the device that this rank is bound to. torch passes it to a Python group only by this call."""
        self.bound_device_id = None if device is None else torch.device(device)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> PhalanxProcessGroup | None:
        """Make a group of some of the ranks, in ascending order; None on the others.

        Raises:
            UsageError: A rank is outside this group, or there are options.
            OperationTimeoutError: A member did not come.
        """
        if opts is not None and not isinstance(opts, naming.Options):
            raise UsageError(f"split_group: phalanx has no options; got {type(opts).__name__}")
        name = group_name or f"{self.group_name}:split:{sorted(ranks)}"
        group = self._group.split(ranks, name=name, timeout_s=read_timeout(timeout))
        return None if group is None else self._derive(group, name, group_desc)

    def merge_remote_group(
        self,
        store: Store,
        size: int,
        timeout: timedelta | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> PhalanxProcessGroup:
        """Merge with the other groups that call this with the same store, `size` ranks in all.

        The groups come in the order of the smallest rank that their members had in the parent, then of their names.

        Raises:
            UsageError: The groups disagree on the size, or are on several hosts.
            OperationTimeoutError: Not all came.
        """
        limit = timeout or timedelta(seconds=self._group.timeout_s)
        name = group_name or f"{self.group_name}:merge"
        place = agree_on_merge_place(store, size, limit)
        group = self._group.merge(place, size, name=name, timeout_s=limit)
        return self._derive(group, name, group_desc)

    def _derive(self, group: LocalGroup, name: str, description: str | None) -> PhalanxProcessGroup:
        store = dist.PrefixStore(f"{name}/", self.get_group_store())
        derived = self._of_the_same_kind(group, store, name)
        if description is not None:
            derived._set_group_desc(description)
        return derived

    def _of_the_same_kind(self, group: LocalGroup, store: Store, name: str) -> PhalanxProcessGroup:
        return PhalanxProcessGroup(group, store, name=name, backend_name=self._backend_name)

    # The names that C++ code calls.
    splitGroup = split_group
    mergeRemoteGroup = merge_remote_group


for _name, _old_name in versions.OLD_NAMES.items():
    setattr(PhalanxProcessGroup, _old_name, getattr(PhalanxProcessGroup, _name))


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor for data, which is written outside autograd."""
    return tensor.detach() if tensor.requires_grad else tensor


def _as_list(tensors: Any) -> list[Tensor]:
    if type(tensors) is list:  # what torch itself passes; the other checks take longer
        return tensors[:]
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _as_lists(lists: Any) -> list[list[Tensor]]:
    """Accept a list of lists, or one list."""
    if not lists or isinstance(lists[0], torch.Tensor):
        return [list(lists)] if lists else []
    return [list(tensors) for tensors in lists]


def _only(tensors: list[Tensor], operation: str) -> Tensor:
    if len(tensors) != 1:
        raise UsageError(f"{operation}: {len(tensors)} tensors were given; give one")
    return _plain(tensors[0])


def _pairs(operation: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    if len(outputs) != len(inputs):
        raise UsageError(f"{operation}: {len(outputs)} outputs but {len(inputs)} inputs")
    return list(zip(outputs, inputs, strict=True))

"""phalanx in NCCL's place: tensors of GPUs, by NCCL's rules.

All of them on virtual GPUs; on real ones, ranks may share a GPU: a program for NCCL then runs on fewer than it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from phalanx.devices.cuda_face.nccl import VERSION
from phalanx.devices.cuda_face.ordinals import checked
from phalanx.errors import UsageError
from phalanx.groups import stream_order
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.stand_in.group import StandInGroup, join_ranks
from phalanx.stand_in.integer_average import averaging, is_integer_average
from phalanx.stand_in.nccl_options import NcclConfig, NcclOptions
from phalanx.stand_in.nccl_rules import NcclRules
from phalanx.stand_in.one_rank_per_device import OneRankPerDevice
from phalanx.stand_in.param_comms import ParamComms
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.device_work import DeviceWork
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import Store, dist
from phalanx.torch_backend.work import FinishedWork

_uids = itertools.count()


class _Host:
    """The host, which waits for the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Wait."""
        torch.cuda.current_stream(self._device).synchronize()


class NcclStandIn(StandInGroup):
    """What `ProcessGroupNCCL` means while the stand-in is installed."""

    stands_in_for = "nccl"
    supports_splitting = True
    supports_coalescing = True

    Options = NcclOptions
    NCCLConfig = NcclConfig
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = range(3)

    def __init__(self, store: Store, rank: int, size: int, options: Any = None, *_: Any) -> None:
        given = options if isinstance(options, NcclOptions) else NcclOptions()
        if isinstance(options, timedelta):
            given._timeout = options
        group, name = join_ranks(store, rank, size, given._timeout)
        self._begin(group, store, name, given)
        self._tell()

    def _begin(self, group: SharedMemoryGroup, store: Store, name: str, options: NcclOptions) -> None:
        super().__init__(group, store, name=name, device_types=("cuda",))
        self._options = options
        self._meeting_type = "cuda"
        is_virtual = stream_order.is_virtual("cuda")
        self._devices = OneRankPerDevice(group, store, is_kept=is_virtual)
        self._habits.rules = NcclRules(self._devices)
        self._params = ParamComms(group)
        if is_virtual:  # whose library has a way to torch's profiler
            self._habits.comms = self._params
        self._num_splits = 0
        self.uid = next(_uids)
        self._set_default_backend(dist.ProcessGroup.BackendType.NCCL)

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._params.description = description

    setGroupDesc = _set_group_desc

    # -- devices

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Bind this rank to its device, and look whether it is the only one there.

        Raises:
            DistBackendError: Another rank uses it.
        """
        chosen = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        self.bound_device_id = chosen
        self._devices.bind(chosen)

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Wait until every rank is here. As NCCL's, it takes a device, and holds the host until its stream is done.

        Raises:
            torch.AcceleratorError: There is no such device.
            DistBackendError: Another rank uses it.
        """
        device = self._known_device(opts)
        if device is None:
            device = self._guess_device()
        else:
            self._devices.check(device, "barrier")
        work = super().barrier(opts, timeout=timeout)
        if isinstance(work, DeviceWork):
            work.also_orders(_Host(device))
        else:
            _Host(device).wait()
        return work

    def _known_device(self, opts: Any) -> torch.device | None:
        named = [] if opts is None else list(opts.device_ids)
        if named:
            return torch.device("cuda", checked(named[0], torch.cuda.device_count()))
        if self.bound_device_id is not None:
            return torch.device(self.bound_device_id)
        return self._devices.first_used

    def _guess_device(self) -> torch.device:
        """Return what torch takes when nothing is known: by the rank in the world. That is no use of the device yet."""
        num_devices = torch.cuda.device_count()
        ranks = self._group.ranks
        device = torch.device("cuda", ranks[self.rank()] % num_devices)
        if len({rank % num_devices for rank in ranks}) < len(ranks):
            self._devices.check(device, "barrier")
        return device

    # -- reductions

    def _launch(
        self,
        event: str,
        shown: Sequence[Tensor],
        result: list[Any],
        options: CallOptions,
        call: Callable[..., Any],
        *args: Any,
    ) -> FinishedWork | None:
        if is_integer_average(options, shown):
            results = [] if event == "reduce" and options.root != self.rank() else result
            call = averaging(call, self.size(), results)
        return super()._launch(event, shown, result, options, call, *args)

    def _launch_each(
        self, event: str, result: list[Any], options: CallOptions, calls: Sequence[tuple[Any, ...]]
    ) -> FinishedWork:
        if is_integer_average(options, [output for output in result if isinstance(output, Tensor)]):
            calls = [(averaging(call, self.size(), [args[0]]), *args) for call, *args in calls]
        return super()._launch_each(event, result, options, calls)

    def _is_initialized(self) -> bool:
        return self._devices.is_any_used

    # -- splitting

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: those who are not in a new group need not be there when it is made."""
        self._num_splits += 1

    def comm_split_count(self) -> int:
        """Return how many groups were made from this one."""
        return self._num_splits

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
            UsageError: A rank is outside this group, or the options are not NCCL's.
            OperationTimeoutError: A member did not come.
        """
        if opts is not None and not isinstance(opts, NcclOptions):
            raise UsageError(f"split_group: give ProcessGroupNCCL.Options, not {type(opts).__name__}")
        self._num_splits += 1
        made = super().split_group(ranks, timeout, None, group_name, group_desc)
        if isinstance(made, NcclStandIn) and self.bound_device_id is not None:
            made.eager_connect_single_device(self.bound_device_id)
        return made

    splitGroup = split_group

    def _of_the_same_kind(self, group: SharedMemoryGroup, store: Store, name: str) -> PhalanxProcessGroup:
        options = NcclOptions(self._options.is_high_priority_stream)
        options._timeout = timedelta(seconds=group.timeout_s)
        options.global_ranks_in_group, options.group_name = list(group.ranks), name
        derived = NcclStandIn.__new__(NcclStandIn)
        derived._begin(group, store, name, options)
        return derived

    # -- what NCCL has and shared memory does not need

    def _group_start(self) -> None:
        """Do nothing: operations need not be grouped to be started together."""

    _group_end = _group_start

    def _enable_collectives_timing(self) -> None:
        """Do nothing: durations are always measured."""

    def _wait_for_pending_works(self) -> None:
        self._group.drain()

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Extend the time that operations may take. Not only the next one's, as with NCCL."""
        self.set_timeout(self._options._timeout + timeout)

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Do nothing: every tensor of a GPU is reached in the same way."""

    deregister_mem_pool = register_mem_pool

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """Return the version that is stood in for."""
        return VERSION

    get_runtime_nccl_version = get_build_nccl_version

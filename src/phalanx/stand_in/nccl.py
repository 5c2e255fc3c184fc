"""The stand-in for NCCL, for tensors on GPUs.

All of NCCL's rules apply on virtual GPUs. On real GPUs, ranks may share a GPU, so that a program can run on fewer GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import LocalGroup
from phalanx.errors import UsageError
from phalanx.groups import stream_order
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
from phalanx.virtual_gpus.torch_cuda.nccl import VERSION
from phalanx.virtual_gpus.torch_cuda.ordinals import checked

_uids = itertools.count()


class NcclStandIn(StandInGroup):
    """The class that replaces `ProcessGroupNCCL` while the stand-in is installed."""

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
        self._log_stand_in()

    def _begin(self, group: LocalGroup, store: Store, name: str, options: NcclOptions) -> None:
        super().__init__(group, store, name=name, device_types=("cuda",))
        self._options = options
        self._meeting_type = "cuda"
        is_virtual = stream_order.is_virtual("cuda")
        self._devices = OneRankPerDevice(group, store, is_kept=is_virtual)
        self._keep_to(NcclRules(self._devices))
        self._params = ParamComms(group)
        if is_virtual:  # their library can call torch's profiler
            self._comms = self._params
        self._num_splits = 0
        self.uid = next(_uids)
        self._set_default_backend(dist.ProcessGroup.BackendType.NCCL)

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._params.description = description

    setGroupDesc = _set_group_desc

    # -- devices

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Bind this rank to its device, and check that no other rank uses it.

        Raises:
            DistBackendError: Another rank uses it.
        """
        chosen = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        self.bound_device_id = chosen
        self._devices.bind(chosen)

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Wait until every rank has called it. As NCCL does, it uses a device and blocks until its stream is done.

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
            work.call_after(lambda: torch.cuda.current_stream(device).synchronize())
        else:
            torch.cuda.current_stream(device).synchronize()
        return work

    def _known_device(self, opts: Any) -> torch.device | None:
        named = [] if opts is None else list(opts.device_ids)
        if named:
            return torch.device("cuda", checked(named[0], torch.cuda.device_count()))
        if self.bound_device_id is not None:
            return torch.device(self.bound_device_id)
        return self._devices.first_used

    def _guess_device(self) -> torch.device:
        """Return the device that torch guesses from the rank in the world. The rank may still use another one."""
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

    def _is_initialized(self) -> bool:
        return self._devices.is_any_used

    # -- splitting

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: ranks that are not in a new group take no part in making it."""
        self._num_splits += 1

    def comm_split_count(self) -> int:
        """Return how many groups were split from this one."""
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
        """Make a group of some of the ranks, in ascending order; return None on other ranks.

        Raises:
            UsageError: A rank is outside this group, or the options are not NCCL's.
            OperationTimeoutError: A member is missing.
        """
        if opts is not None and not isinstance(opts, NcclOptions):
            raise UsageError(f"split_group: give ProcessGroupNCCL.Options, not {type(opts).__name__}")
        self._num_splits += 1
        made = super().split_group(ranks, timeout, None, group_name, group_desc)
        if isinstance(made, NcclStandIn) and self.bound_device_id is not None:
            made.eager_connect_single_device(self.bound_device_id)
        return made

    splitGroup = split_group

    def _of_the_same_kind(self, group: LocalGroup, store: Store, name: str) -> PhalanxProcessGroup:
        options = NcclOptions(self._options.is_high_priority_stream)
        options._timeout = timedelta(seconds=group.timeout_s)
        options.global_ranks_in_group, options.group_name = list(group.ranks), name
        derived = NcclStandIn.__new__(NcclStandIn)
        derived._begin(group, store, name, options)
        return derived

    # -- what NCCL has and shared memory does not need

    def _group_start(self) -> None:
        """Do nothing: operations need no group to start together."""

    _group_end = _group_start

    def _enable_collectives_timing(self) -> None:
        """Do nothing: durations are always measured."""

    def _wait_for_pending_works(self) -> None:
        self._group.drain()

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Extend the timeout of all later operations. (NCCL extends only that of the next one.)"""
        self.set_timeout(self._options._timeout + timeout)

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Do nothing: all GPU memory is handled in the same way."""

    deregister_mem_pool = register_mem_pool

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """Return the version of NCCL that the stand-in claims to be."""
        return VERSION

    get_runtime_nccl_version = get_build_nccl_version

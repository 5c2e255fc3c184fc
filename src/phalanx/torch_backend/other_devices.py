"""Groups that serve several kinds of devices, such as "cpu:phalanx,cuda:nccl": each kind goes to its own engine.

torch uses a ProcessGroup written in Python for all devices and drops the backends that it made for the other devices.
So the engines of those devices are made here, when the first tensor of such a device arrives. So is the NCCL engine of
a plain "phalanx" group over several hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from phalanx.torch_backend import nccl_over_hosts, versions
from phalanx.torch_backend.future import pending_futures
from phalanx.torch_backend.meeting_places import open_board
from phalanx.torch_backend.naming import NamedGroup
from phalanx.torch_backend.untyped import Store, dist

if TYPE_CHECKING:
    from phalanx.torch_backend.launching import LaunchingGroup

Method = TypeVar("Method", bound=Callable[..., Any])
_MESSAGES = ("send", "recv", "recv_anysource")


def routed(method: Method) -> Method:
    """Send a call to the engine of its tensors' device, or to the method itself if phalanx serves that device."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: LaunchingGroup, *args: Any, **kwargs: Any) -> Any:
        others = self._others
        if others.is_known_alone or others.is_empty():
            return method(self, *args, **kwargs)
        if pending_futures.open and name not in _MESSAGES:
            pending_futures.await_own()  # first: a callback may make the engine
        device = _first_device(args)
        engine = others.engine_for(device) if device is not None else None
        if engine is None or device is None:
            return method(self, *args, **kwargs)
        others.check_gpus(device, args[1] if name in _MESSAGES and len(args) > 1 else None)
        return getattr(engine, name if hasattr(engine, name) else versions.OLD_NAMES[name])(*args, **kwargs)

    return call  # type: ignore[return-value]


def _first_device(values: Any) -> torch.device | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (list, tuple)) and (device := _first_device(value)) is not None:
            return device
    return None


class OtherDevices:
    """The engines of a group's other devices, by device type.

    Args:
        group: The group of phalanx.
        store: The store through which engines meet.
        device_types: The device types that the group serves if torch does not say.
    """

    def __init__(self, group: LaunchingGroup, store: Store, device_types: Sequence[str]) -> None:
        self._group = group
        self._store = store
        self._own_types = tuple(device_types)
        self._names: dict[str, str] | None = None  # the backend's name for each device type
        self._is_mixed = False
        self._has_nccl = False  # for CUDA tensors, beside the backends that torch knows of
        self._gpus: nccl_over_hosts.GpuRoll | None = None
        self.is_known_alone = False  # True once is_empty() can't change; every operation reads it
        self._engines: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Tell whether phalanx serves every device of the group."""
        if self._names is None:
            self._read_names()
        return not self._is_mixed

    def is_served(self, device_type: str) -> bool:
        """Tell whether phalanx serves a device: by this group, or by an engine that stands in for its backend."""
        own, names = self._group._backend_name, self._read_names()
        if self._has_nccl and device_type == nccl_over_hosts.KIND:
            return False
        return names.get(device_type) == own or isinstance(self._engines.get(device_type), NamedGroup)

    def names(self) -> dict[str, str]:
        """Return the backend's name for each device type that the group serves."""
        return dict(self._read_names())

    def device_types(self) -> list[torch.device]:
        """Return the devices that the group serves."""
        return [torch.device(kind) for kind in self._read_names()]

    def make_all(self) -> None:
        """Make every engine now. All ranks must do so."""
        for kind in self._read_names():
            self.engine_for(torch.device(kind))

    def engines(self) -> list[Any]:
        """Return the engines made so far."""
        return list(self._engines.values())

    def engine_for(self, device: torch.device) -> Any:
        """Return the engine of a device, which all ranks make on first use; None if phalanx serves the device.

        Raises:
            RuntimeError: The group does not serve this device.
        """
        name = self._read_names().get(device.type)
        if self._has_nccl and device.type == nccl_over_hosts.KIND and torch.cuda.is_available():
            name = nccl_over_hosts.NAME
        if name is None or name == self._group._backend_name:
            return None  # our own engine says what is wrong with a device that nobody serves
        if device.type not in self._engines:
            self._engines[device.type] = self._make(device.type, name)
        return self._engines[device.type]

    def check_gpus(self, device: torch.device, peer: int | None) -> None:
        """Check that ranks of a call do not share a GPU, if NCCL serves GPUs that were to be phalanx's.

        Args:
            device: The device of the tensors.
            peer: The other rank of a message; None if all ranks make the call.

        Raises:
            UsageError: Ranks share a GPU.
            OperationTimeoutError: A rank did not come.
        """
        if not self._has_nccl or device.type != nccl_over_hosts.KIND:
            return
        rank, group = self._group.rank(), self._group._group
        if self._gpus is None:
            board = open_board(dist.PrefixStore("phalanx/gpus/", self._store), rank)
            self._gpus = nccl_over_hosts.GpuRoll(board, group.name, rank, group.timeout_s)
        others = range(self._group.size()) if peer is None else [peer]
        self._gpus.check(nccl_over_hosts.own_gpu(device), others)

    def backend_for(self, device: torch.device) -> Any:
        """Return what torch calls the backend of a device.

        Raises:
            RuntimeError: The group does not serve this device.
        """
        if device.type not in self._read_names():
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        engine = self.engine_for(device)
        return self._group if engine is None else engine._get_backend(device)

    def shutdown(self) -> None:
        """Shut the engines down."""
        for engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()

    def abort(self) -> None:
        """Abort the engines."""
        for engine in self._engines.values():
            engine.abort()

    def _read_names(self) -> dict[str, str]:
        """Return each device type's backend; phalanx for all until torch has stored the group's configuration."""
        if self._names is None:
            own = self._group._backend_name
            text = dist.distributed_c10d._world.pg_backend_config.get(self._group)
            if text is None:
                return dict.fromkeys(self._own_types, own)
            self._names = dict(part.split(":", 1) for part in str(text).split(",") if ":" in part)
            if own not in self._names.values():
                self._names.setdefault("cpu", own)
            of_cuda = self._names.get(nccl_over_hosts.KIND)
            self._has_nccl = nccl_over_hosts.concerns(self._group._group, of_cuda, own)
            self._is_mixed = self._has_nccl or len(set(self._names.values())) > 1
            self.is_known_alone = not self._is_mixed
        return self._names

    def _make(self, kind: str, name: str) -> Any:
        store = dist.PrefixStore(f"phalanx/{kind}/", self._store)
        rank, size, timeout = self._group.rank(), self._group.size(), self._group.options._timeout
        backend, backend_type = versions.make_torch_backend(name, store, rank, size, timeout)
        if isinstance(backend, dist.ProcessGroup):
            return backend  # phalanx again, standing in for that backend
        # Wrap it in a plain group: if it were registered with our group, calls to it would come back to us.
        engine = dist.ProcessGroup(store, rank, size)
        engine._set_default_backend(backend_type)
        engine._register_backend(torch.device(kind), backend_type, backend)
        engine._set_group_name(self._group.group_name)
        return engine

"""Put the functions of torch.cuda in place."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.cuda.nccl
import torch.cuda.streams

from phalanx.devices.comm import torch_names
from phalanx.patches import Names, Patches
from phalanx.virtual_gpus.torch_cuda import (
    backends,
    cudart,
    devices,
    flex_attention,
    generators,
    gloo,
    inductor,
    legacy_types,
    markers,
    memory,
    nccl,
    profiling,
    properties,
    refusals,
    snapshots,
    storage,
    streams,
)

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library
    from phalanx.virtual_gpus.set_up import Setup

_STREAM_CLASSES = ("Stream", "ExternalStream", "Event")
_patches = Patches(
    'virtual GPUs are set up with face="cuda"',
    undo="never: torch keeps a device type for the rest of the process, and tensors of it may exist",
)


def install(library: Library, setup: Setup) -> None:
    """Make torch.cuda work on the virtual devices of a library, for the rest of the process."""
    for topic, names in _names_by_topic(library, setup):
        _put(topic, names)
    _renew_stream_classes()
    _renew_dynamo()
    _patches.after_import(gloo.MODULE, lambda: _put(gloo, gloo.names()))
    _patches.after_import(flex_attention.MODULE, lambda: flex_attention.replace(_patches))
    _patches.after_import(inductor.MODULE, lambda: _put(inductor, inductor.names()))
    _patches.after_import(refusals.TRITON_MODULE, lambda: _put(refusals, refusals.triton_names()))


def _put(topic: ModuleType, names: Names) -> None:
    """Replace names; the first line of their module's docstring is the reason."""
    _patches.replace_all(names, (topic.__doc__ or topic.__name__).partition("\n")[0])


def _names_by_topic(library: Library, setup: Setup) -> Iterator[tuple[ModuleType, Names]]:
    yield devices, devices.names(library)
    yield properties, properties.names(library.num_devices, setup)
    yield streams, streams.names(library)
    yield cudart, cudart.names(library)
    yield memory, memory.names(library)
    yield snapshots, snapshots.names(library)
    yield generators, generators.names(library)
    yield storage, storage.names(library)
    yield legacy_types, legacy_types.names(library)
    yield backends, backends.names()
    yield nccl, nccl.names()
    yield markers, markers.names()
    yield profiling, profiling.names()
    yield refusals, refusals.names()
    yield torch_names, torch_names.names()


def _renew_stream_classes() -> None:
    """Define torch.cuda.Stream and its relatives again: when torch was imported, it derived them from dummy classes."""
    module = torch.cuda.streams
    old = {name: getattr(module, name) for name in _STREAM_CLASSES}
    importlib.reload(module)
    for name, its in old.items():
        new = getattr(module, name)
        setattr(module, name, its)
        for place, other in list(sys.modules.items()):
            if place.startswith("torch") and getattr(other, "__dict__", {}).get(name) is its:
                _put(streams, {f"{place}.{name}": new})


def _renew_dynamo() -> None:
    """If torch.compile was imported before, repeat its look-ups."""
    if "torch._dynamo.device_interface" not in sys.modules:
        return
    interface = "torch._dynamo.device_interface.CudaInterface"
    _put(
        streams,
        {
            f"{interface}.Event": torch.cuda.Event,
            f"{interface}.Stream": torch.cuda.Stream,
            f"{interface}.get_raw_stream": staticmethod(torch._C._cuda_getCurrentRawStream),
            f"{interface}.exchange_device": staticmethod(torch.cuda._exchange_device),
            f"{interface}.maybe_exchange_device": staticmethod(torch.cuda._maybe_exchange_device),
            "torch._dynamo.device_interface.get_cuda_stream": torch._C._cuda_getCurrentRawStream,
        },
    )

"""Put the CUDA face in place, and tell what was replaced."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import torch
import torch.cuda.nccl
import torch.cuda.streams

from phalanx.devices.comm.torch_names import TORCH_NAMES
from phalanx.devices.cuda_face import (
    backends,
    cudart,
    devices,
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
from phalanx.devices.cuda_face.after_import import after_import
from phalanx.devices.cuda_face.names import Names, Replacements

if TYPE_CHECKING:
    from phalanx.devices.library import Library
    from phalanx.devices.set_up import Setup

_STREAM_CLASSES = ("Stream", "ExternalStream", "Event")
_replacements = Replacements()  # of the process, as the names it replaces are


def install(library: Library, setup: Setup) -> None:
    """Make torch.cuda work on the virtual devices of a library, for the rest of the process."""
    _replacements.put(_all_names(library, setup))
    _renew_stream_classes()
    _renew_dynamo()
    after_import(gloo.MODULE, lambda: _replacements.put(gloo.names()))
    after_import(inductor.MODULE, lambda: _replacements.put(inductor.names()))
    after_import(refusals.TRITON_MODULE, lambda: _replacements.put(refusals.triton_names()))


def replaced_names() -> list[str]:
    """Return the names of torch that stand for something else now, by dotted path; none before install()."""
    return _replacements.names()


def _all_names(library: Library, setup: Setup) -> Names:
    return {
        **devices.names(library),
        **properties.names(library.num_devices, setup.memory_bytes),
        **streams.names(library),
        **cudart.names(library, setup.memory_bytes),
        **memory.names(library, setup.memory_bytes),
        **snapshots.names(library),
        **generators.names(library),
        **storage.names(library),
        **legacy_types.names(library),
        **backends.names(),
        **nccl.names(),
        **markers.names(),
        **profiling.names(),
        **refusals.names(),
        **{f"torch._C.{name}": function for name, function in TORCH_NAMES.items()},
    }


def _renew_stream_classes() -> None:
    """Define torch.cuda.Stream and its kin anew: torch derived them from dummies when it was imported."""
    module = torch.cuda.streams
    old = {name: getattr(module, name) for name in _STREAM_CLASSES}
    importlib.reload(module)
    for name, its in old.items():
        _replacements.put_everywhere(name, its, getattr(module, name))


def _renew_dynamo() -> None:
    """Repeat what torch.compile has looked up, if it was imported before."""
    if "torch._dynamo.device_interface" not in sys.modules:
        return
    interface = "torch._dynamo.device_interface.CudaInterface"
    _replacements.put(
        {
            f"{interface}.Event": torch.cuda.Event,
            f"{interface}.Stream": torch.cuda.Stream,
            f"{interface}.get_raw_stream": staticmethod(torch._C._cuda_getCurrentRawStream),
            f"{interface}.exchange_device": staticmethod(torch.cuda._exchange_device),
            f"{interface}.maybe_exchange_device": staticmethod(torch.cuda._maybe_exchange_device),
            "torch._dynamo.device_interface.get_cuda_stream": torch._C._cuda_getCurrentRawStream,
        }
    )

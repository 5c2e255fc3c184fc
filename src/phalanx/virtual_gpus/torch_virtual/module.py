"""Build torch.virtual: the device module that torch's device-independent parts look for.

torch.accelerator, autocast, GradScaler, fork_rng, checkpoint, FSDP2 and DTensor call it by the names of torch.cuda.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from phalanx.virtual_gpus.library import Library
from phalanx.virtual_gpus.torch_virtual import selection, streams
from phalanx.virtual_gpus.torch_virtual.indices import DEVICE_TYPE, Indices, index_named
from phalanx.virtual_gpus.torch_virtual.memory import Memory, counters
from phalanx.virtual_gpus.torch_virtual.random_numbers import RandomNumbers
from phalanx.virtual_gpus.torch_virtual.selection import Selection
from phalanx.virtual_gpus.torch_virtual.streams import Streams

# Cycles of torch.virtual._sleep in a second: torch's tests for CUDA expect about this many.
_CYCLES_PER_SECOND = 1e9


def device_module(library: Library, num_devices: int, memory_bytes: int) -> ModuleType:
    """Return the module, complete but not yet registered with torch."""
    indices = Indices(num_devices)
    random_numbers = RandomNumbers(indices, library)
    module = ModuleType(f"torch.{DEVICE_TYPE}", "Virtual devices: torch.cuda's functions for device type 'virtual'.")
    parts = (
        Selection(indices, num_devices, memory_bytes),
        Streams(indices),
        Memory(indices, library),
        random_numbers,
    )
    names = {name: getattr(part, name) for part in parts for name in dir(type(part)) if not name.startswith("_")}
    names |= counters(indices)
    names |= {name: getattr(selection, name) for name in ("device", "device_of", "VirtualDeviceProperties")}
    names |= {name: getattr(streams, name) for name in ("Stream", "Event", "StreamContext")}
    names["default_generators"] = random_numbers.default_generators
    private_names = _private_names(library, names)
    module.__dict__.update(names | private_names, __all__=sorted(names))
    return module


def _private_names(library: Library, names: dict[str, Any]) -> dict[str, Any]:
    """Return the private names that torch itself calls on any device module."""
    return {
        "_is_in_bad_fork": names.pop("is_in_bad_fork"),
        "_exchange_device": names["exchange_device"],
        "_maybe_exchange_device": names.pop("exchange_device"),
        "_get_generator": names.pop("generator"),
        "_get_rng_state_offset": names.pop("get_rng_state_offset"),
        "_set_rng_state_offset": names.pop("set_rng_state_offset"),
        "_initialized": True,
        "_lazy_init": names["init"],
        "_sleep": lambda cycles: library.sleep(cycles / _CYCLES_PER_SECOND),
        "_utils": SimpleNamespace(_get_device_index=index_named),
    }

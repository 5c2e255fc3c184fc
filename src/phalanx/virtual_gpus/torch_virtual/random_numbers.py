"""Seeds and random states of the virtual devices."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from phalanx.virtual_gpus.library import Library
from phalanx.virtual_gpus.torch_virtual.indices import DEVICE_TYPE, AnyDevice, Indices


class RandomNumbers:
    """The random functions of torch.virtual.

    A state is 16 bytes, the seed and the offset, as CUDA's is: DTensor reads and writes both.
    """

    def __init__(self, indices: Indices, library: Library) -> None:
        self._indices = indices
        with library.exposed_generators():
            self.default_generators = tuple(
                torch.Generator(device=torch.device(DEVICE_TYPE, index)) for index in range(library.num_devices)
            )

    def generator(self, device: AnyDevice = None) -> torch.Generator:
        """Return the default generator of a device."""
        return self.default_generators[self._indices.of(device)]

    def get_rng_state(self, device: AnyDevice = None) -> torch.Tensor:
        """Return the state of a device."""
        return self.generator(device).get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: AnyDevice = None) -> None:
        """Set the state of a device."""
        self.generator(device).set_state(new_state.clone(memory_format=torch.contiguous_format))

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the states of all devices."""
        return [generator.get_state() for generator in self.default_generators]

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Set the states of the devices, in their order."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def get_rng_state_offset(self, device: AnyDevice = None) -> int:
        """Return the offset of a device's generator from its seed."""
        return int(self.generator(device).get_offset())

    def set_rng_state_offset(self, offset: int, device: AnyDevice = None) -> None:
        """Set the offset of a device's generator from its seed."""
        self.generator(device).set_offset(offset)

    def manual_seed(self, seed: int) -> None:
        """Seed the current device."""
        self.generator().manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed all devices."""
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def seed(self) -> None:
        """Seed the current device with a random number."""
        self.generator().seed()

    def seed_all(self) -> None:
        """Seed all devices with one random number."""
        self.manual_seed_all(self.default_generators[0].seed())

    def initial_seed(self) -> int:
        """Return the seed of the current device."""
        return int(self.generator().initial_seed())

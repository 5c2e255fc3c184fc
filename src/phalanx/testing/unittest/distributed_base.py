"""A test case for ranks that are processes, with a process group for the device."""

from __future__ import annotations

from typing import Any

import torch

from phalanx.errors import UsageError
from phalanx.settings import copy_environment, replace_environment, set_environment
from phalanx.testing.unittest.multi_process import MultiProcessTestCase
from phalanx.torch_backend.untyped import dist

_BACKENDS = {"cuda": "nccl", "hpu": "hccl", "xpu": "xccl"}


class DistributedTestBase(MultiProcessTestCase):
    """Ranks are made in setUp(); a test makes its group with create_pg()."""

    def setUp(self) -> None:
        """Make the ranks."""
        super().setUp()
        self.addCleanup(replace_environment, copy_environment())
        set_environment(WORLD_SIZE=str(self.world_size))
        self._spawn_processes()

    def tearDown(self) -> None:
        """End the ranks, and destroy the process group if this process has one."""
        if dist.is_initialized():
            dist.destroy_process_group()
        super().tearDown()

    def backend(self, device: str) -> str:
        """Return the name of a device's backend."""
        return next((name for part, name in _BACKENDS.items() if part in device), "gloo")

    def create_pg(self, device: str, world_size: int | None = None) -> Any:
        """Make the default process group, and choose this rank's device if ranks have devices.

        Raises:
            UsageError: There is no such device.
        """
        backend = self.backend(device)
        dist.init_process_group(
            backend=backend,
            world_size=self.world_size if world_size is None else world_size,
            rank=self.rank,
            store=dist.FileStore(self.file_name, self._num_devices(device)),
        )
        if "nccl" in backend or "xccl" in backend:
            accelerator = torch.accelerator.current_accelerator()
            if accelerator is None:
                raise UsageError(f"backend {backend} for device {device}: this machine has no accelerator")
            torch.set_default_device(torch.device(accelerator.type, self.rank))
            torch.accelerator.set_device_index(self.rank)
        return dist.group.WORLD

    def rank_to_device(self, device: str) -> dict[int, list[int]]:
        """Assign device numbers to ranks, round robin.

        Raises:
            UsageError: There is no such device.
        """
        count = self._num_devices(device)
        if count == 0:
            raise UsageError(
                f"rank_to_device: this machine has no {device} device; skip the test with skip_if_lt_x_gpu"
            )
        return {rank: [rank % count] for rank in range(self.world_size)}

    def _num_devices(self, device: str) -> int:
        return int(torch.get_device_module(device).device_count())

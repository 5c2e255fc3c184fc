"""NCCL's first rule: every rank has a device of its own. Looked at once per device, when it is first used.

A communicator of NCCL comes to be at the first collective, with all ranks; so here they tell each other their devices
then. A message has two ranks only: each leaves word of its device in the store and looks who has been there.
"""

from __future__ import annotations

import torch

from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.torch_backend.untyped import Store, dist


class OneRankPerDevice:
    """Which device this rank uses, and whether it is the only one. One thread at a time."""

    def __init__(self, group: SharedMemoryGroup, store: Store) -> None:
        self._group = group
        self._store = store
        self._known: set[int] = set()
        self._told: set[int] = set()
        self._bound: torch.device | None = None
        self.last: torch.device | None = None

    def bind(self, device: torch.device) -> None:
        """Keep to one device, and tell the others at once.

        Raises:
            DistBackendError: Another rank uses it.
        """
        self._bound = device
        self.check(device, False, None)

    def check(self, device: torch.device, is_message: bool, timeout_s: float | None) -> None:
        """Look at the device of a tensor.

        Raises:
            DistBackendError: It is not the one this rank is bound to, or another rank uses it.
        """
        if self._bound is not None and device != self._bound:
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group\n"
                f"  here     the tensor is on {device}, and this rank is bound to {self._bound}"
            )
        if is_message:
            self._leave_word(device.index)
        elif device.index not in self._known:
            self._compare(device.index, timeout_s)
        self.last = device

    def _compare(self, index: int, timeout_s: float | None) -> None:
        mine = torch.tensor([index])
        indices = [torch.empty_like(mine) for _ in range(self._group.size)]
        self._group.all_gather(indices, mine, timeout_s=timeout_s)
        users: dict[int, int] = {}
        for rank, told in enumerate(int(value) for value in indices):
            if told in users:
                raise self._duplicate(rank, users[told], told)
            users[told] = rank
        self._known.add(index)

    def _leave_word(self, index: int) -> None:
        if index in self._known or index in self._told:
            return
        self._told.add(index)
        own = self._group.rank
        self._store.set(f"phalanx/device/{index}/{own}", "here")  # before looking: of two, the later one sees the other
        for rank in range(self._group.size):
            if rank != own and self._store.check([f"phalanx/device/{index}/{rank}"]):
                raise self._duplicate(max(rank, own), min(rank, own), index)

    def _duplicate(self, rank: int, other: int, index: int) -> BaseException:
        error: BaseException = dist.DistBackendError(
            f"Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {index}\n"
            f"  here     rank {self._group.rank} of {self._group.size}\n"
            f"  do       give every rank a device of its own: torch.cuda.set_device(rank) before the first collective, "
            f"or init_process_group(device_id=...)"
        )
        return error

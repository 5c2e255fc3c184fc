"""NCCL's first rule: every rank has a device of its own. Looked at once per device, when it is first used.

Where the rule is not kept, ranks may share a device; one that a rank has bound itself to is still its only one.

A rank leaves word of its device in the store and sees whether another has been there: of two, the later one. Nobody
waits, so a rank that is late is still found waiting for in the operation that the program called.
"""

from __future__ import annotations

import contextlib

import torch

from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.torch_backend.untyped import Store, dist


class OneRankPerDevice:
    """Which device this rank uses, and whether it is the only one. One thread at a time.

    Args:
        group: The ranks.
        store: Where they leave word.
        is_kept: Whether the rule is.
    """

    def __init__(self, group: SharedMemoryGroup, store: Store, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._group = group
        self._store = store
        self._used: list[int] = []
        self._bound: torch.device | None = None

    @property
    def is_any_used(self) -> bool:
        """Whether this rank has used a device."""
        return bool(self._used)

    @property
    def first_used(self) -> torch.device | None:
        """The device that this rank used first."""
        return torch.device("cuda", self._used[0]) if self._used else None

    def bind(self, device: torch.device) -> None:
        """Keep to one device, and compare it with the others' at once. All ranks must do so.

        Raises:
            DistBackendError: Two ranks have the same.
        """
        self._bound = device
        if self._is_kept:
            self._compare(device)
        self._used.append(device.index)

    def _compare(self, device: torch.device) -> None:
        mine = torch.tensor([device.index], device="cpu")
        indices = [torch.empty_like(mine) for _ in range(self._group.size)]
        self._group.all_gather(indices, mine)
        users: dict[int, int] = {}
        for rank, index in enumerate(int(value) for value in indices):
            if index in users:
                raise dist.DistBackendError(self._describe(rank, users[index], index))
            users[index] = rank

    def check(self, device: torch.device, event: str, *, is_message: bool = False) -> None:
        """Look at the device of a tensor.

        Args:
            device: The device.
            event: The operation; those who wait in it are told when it is refused.
            is_message: Whether it is between two ranks.

        Raises:
            DistBackendError: It is not the one this rank is bound to, or another rank uses it.
        """
        if self._bound is not None and device != self._bound:
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group\n"
                f"  here     the tensor is on {device}, and this rank is bound to {self._bound}"
            )
        if device.index in self._used:
            return
        other = self._claim(device.index) if self._is_kept else None
        if other is not None:
            text = self._describe(self._group.rank, other, device.index)
            if not is_message:
                self._group.refuse(event, text)
            raise dist.DistBackendError(text)
        self._used.append(device.index)

    def _claim(self, index: int) -> int | None:
        """Leave word; return who was there before."""
        # A store may serve several groups, one after the other, and ranks may change to other devices, all at once.
        place = f"phalanx/device/{self._group.nonce.hex()}/{len(self._used)}/{index}"
        with contextlib.suppress(dist.DistError):  # a rank that is done may have taken the store with it: nobody to ask
            if self._store.add(place, 1) == 1:
                self._store.set(f"{place}/rank", str(self._group.rank))
            else:
                return int(self._store.get(f"{place}/rank"))
        return None

    def _describe(self, rank: int, other: int, index: int) -> str:
        later, earlier = max(rank, other), min(rank, other)
        return (
            f"Duplicate GPU detected : rank {later} and rank {earlier} both on CUDA device {index}\n"
            f"  here     rank {self._group.rank} of {self._group.size}\n"
            f"  do       give every rank a device of its own: torch.cuda.set_device(rank) before the first collective, "
            f"or init_process_group(device_id=...)"
        )

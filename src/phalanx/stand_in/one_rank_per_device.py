"""NCCL's first rule: every rank has its own device. It is checked once per device, when a rank first uses it.

On real GPUs the rule does not apply: ranks may share a device. A rank that has bound itself to a device still has to
keep to it.

A rank writes its device into the store and reads whether another rank has been there. Of two ranks, the later one
notices. No rank waits for this, so a missing rank is still reported by the operation that the program called.
"""

from __future__ import annotations

import contextlib

import torch

from phalanx.collectives import LocalGroup
from phalanx.torch_backend.untyped import Store, dist


class OneRankPerDevice:
    """Checks which device this rank uses, and whether other ranks use it. Threads must not share it.

    Args:
        group: The group of the ranks.
        store: The store that they write to.
        is_kept: Whether the rule applies.
    """

    def __init__(self, group: LocalGroup, store: Store, *, is_kept: bool) -> None:
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
        """Bind this rank to one device, and compare it with those of the other ranks. All ranks must call it.

        Raises:
            DistBackendError: Two ranks have the same device.
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
        """Check the device of a tensor.

        Args:
            device: The device.
            event: The operation; if it is refused, ranks that wait in it get an error.
            is_message: Whether it is a message.

        Raises:
            DistBackendError: This rank is bound to another device, or another rank uses the device.
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
        """Write this rank into the store; return the rank that was there before, or None."""
        # A store may serve several groups, and all ranks may change to other devices.
        place = f"phalanx/device/{self._group.nonce.hex()}/{len(self._used)}/{index}"
        with contextlib.suppress(dist.DistError):  # the store may be gone with a rank that has ended
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

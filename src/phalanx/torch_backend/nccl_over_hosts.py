"""CUDA tensors of a group over several hosts: NCCL serves them, if every rank has a GPU of its own.

On one host the engine serves GPUs, also those that ranks share. Between hosts it does not move GPU memory. Virtual GPUs
are no case for NCCL: their memory is that of the host.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from phalanx.diagnosis.formatting import rank_list
from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.groups import stream_order
from phalanx.groups.hybrid import HybridGroup
from phalanx.launch.board import Board

KIND = "cuda"
NAME = "nccl"
_CALL = 'give each rank a GPU of its own, or use tensors on the CPU, or init_process_group("cpu:phalanx,cuda:gloo")'


class RankGpu(NamedTuple):
    """The GPU that a rank uses.

    Attributes:
        host: The name of the rank's host.
        uuid: What the driver calls the GPU; no other GPU has it.
    """

    host: str
    uuid: str


def concerns(group: object, backend_of_cuda: str | None, own_backend: str) -> bool:
    """Tell whether CUDA tensors of a group are for NCCL: it is over hosts, and real GPUs would be phalanx's."""
    is_real = torch.version.cuda is not None and not stream_order.is_virtual(KIND)
    return isinstance(group, HybridGroup) and backend_of_cuda == own_backend and is_real


def describe_shared(gpus: Mapping[int, RankGpu]) -> str:
    """Say which ranks share a GPU; "" if each of them has one of its own."""
    users: dict[RankGpu, list[int]] = {}
    for rank, gpu in sorted(gpus.items()):
        users.setdefault(gpu, []).append(rank)
    shared = [(gpu, ranks) for gpu, ranks in users.items() if len(ranks) > 1]
    return "; ".join(f"{rank_list(ranks)} share GPU {gpu.uuid} of {gpu.host}" for gpu, ranks in shared)


def own_gpu(device: torch.device) -> RankGpu:
    """Return the GPU of a tensor of this rank."""
    properties = torch.cuda.get_device_properties(device)
    return RankGpu(os.uname().nodename, str(properties.uuid))


class GpuRoll:
    """Which GPU each rank of a group uses, as the ranks tell each other at their first CUDA tensors.

    Args:
        board: What the ranks of the group share.
        group: The name of the group.
        rank: The number of this rank.
        timeout_s: How long to wait for other ranks.
    """

    def __init__(self, board: Board, group: str, rank: int, timeout_s: float) -> None:
        self._board = board
        self._title = f'a CUDA tensor in group "{group}", which is over several hosts'
        self._rank = rank
        self._timeout_s = timeout_s
        self._known: dict[int, RankGpu] = {}

    def check(self, own: RankGpu, others: Iterable[int]) -> None:
        """Tell the others which GPU this rank uses, and check that none of these ranks uses the same.

        Raises:
            UsageError: Ranks share a GPU.
            OperationTimeoutError: A rank did not come with a CUDA tensor.
        """
        if self._rank not in self._known:
            self._known[self._rank] = own
            self._board.set(f"gpu/{self._rank}", json.dumps(own))
        missing = [rank for rank in others if rank not in self._known]
        deadline = time.monotonic() + self._timeout_s
        for rank in missing:
            try:
                text = self._board.get(f"gpu/{rank}", max(0.0, deadline - time.monotonic()))
            except OperationTimeoutError:
                raise OperationTimeoutError(
                    f"{self._title}: timed out after {self._timeout_s:.3g} s; rank {rank} did not come with one\n"
                    "  do       make the same call on every rank, on tensors of the same kind of device",
                    culprits=(rank,),
                    verdict="not joined",
                ) from None
            self._known[rank] = RankGpu(*json.loads(text))
        if shared := describe_shared(self._known):
            raise UsageError(f"{self._title}: NCCL serves it, and {shared}, which NCCL refuses\n  do       {_CALL}")

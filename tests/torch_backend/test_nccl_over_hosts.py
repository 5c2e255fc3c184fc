"""Which CUDA tensors of a group over hosts go to NCCL. No GPU is needed: NCCL itself is not called here."""

from __future__ import annotations

import threading
from typing import Any

import torch.distributed

from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.launch.board import Seal, StoreBoard
from phalanx.torch_backend.nccl_over_hosts import GpuRoll, RankGpu, describe_shared

_distributed: Any = torch.distributed  # its types lack the stores
_OWN = {rank: RankGpu(f"node{rank // 2}", f"GPU-{rank}") for rank in range(4)}
_SHARED = {**_OWN, 3: _OWN[2]}


def test_ranks_with_a_gpu_each_share_none() -> None:
    assert not describe_shared(_OWN)
    assert describe_shared(_SHARED) == "ranks 2-3 share GPU GPU-2 of node1"


def _check(gpus: dict[int, RankGpu], others: dict[int, list[int]], timeout_s: float = 60.0) -> dict[int, str]:
    """Let ranks, which are threads, check their GPUs; return what went wrong on each."""
    board = StoreBoard(_distributed.HashStore(), Seal("token", "job"))
    found = {}

    def check(rank: int) -> None:
        try:
            GpuRoll(board, "world", rank, timeout_s).check(gpus[rank], others[rank])
            found[rank] = ""
        except (UsageError, OperationTimeoutError) as error:
            found[rank] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=check, args=[rank]) for rank in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_collective_needs_a_gpu_for_each_rank() -> None:
    everybody = {rank: list(range(4)) for rank in range(4)}
    assert _check(_OWN, everybody) == dict.fromkeys(range(4), "")
    for text in _check(_SHARED, everybody).values():
        assert text.startswith(
            'UsageError: a CUDA tensor in group "world", which is over several hosts: NCCL serves it,'
        )
        assert "ranks 2-3 share GPU GPU-2 of node1, which NCCL refuses" in text


def test_a_message_needs_only_its_two_ranks() -> None:
    assert _check(_SHARED, {0: [3], 3: [0]}) == {0: "", 3: ""}
    assert all("ranks 2-3 share" in text for text in _check(_SHARED, {2: [3], 3: [2]}).values())


def test_a_rank_that_does_not_come_with_a_cuda_tensor_is_named() -> None:
    found = _check(_OWN, {rank: list(range(4)) for rank in range(3)}, timeout_s=0.3)
    assert all("rank 3 did not come with one" in text for text in found.values()), found

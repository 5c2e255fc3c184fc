"""What each backend supports, for suites that ask before they run a test. New backends can be added."""

from __future__ import annotations

from typing import ClassVar

from phalanx.testing.unittest.torch_case import TEST_HPU, TEST_XPU


class DistTestCases:
    """The tables."""

    skip_collective: ClassVar[dict[str, set[str]]] = {
        "allgather_coalesced": {"nccl", "mpi", "ucc", "xccl"},
        "reduce": set(),
        "sendrecv anysource": {"nccl", "ucc", "xccl"},
        "cpu barrier": {"nccl", "ucc", "xccl"},
    }
    backend_feature: ClassVar[dict[str, set[str]]] = {
        "gpu": {"nccl", "gloo", "ucc"},
        "cuda": {"nccl", "gloo", "ucc"},
        "ddp": {"nccl", "gloo", "ucc"},
        "subgroup": {"nccl", "gloo", "ucc"},
        "plugin": set(),
        **({"hpu": {"hccl"}} if TEST_HPU else {}),
        **({"xpu": {"xccl"}} if TEST_XPU else {}),
    }

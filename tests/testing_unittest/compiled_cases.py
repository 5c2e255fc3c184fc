"""Suites of compiled code on our ranks, in a process of its own: torch's compiler takes long to load."""

from __future__ import annotations

import torch

from phalanx.testing.unittest import (
    DynamoDistributedMultiProcTestCase,
    DynamoDistributedSingleProcTestCase,
    _dynamo_dist_per_rank_init,
)
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import run


def add_up(tensor: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = dist._functional_collectives.all_reduce(tensor, "sum", dist.group.WORLD)
    return total + 1


class OneRank(DynamoDistributedSingleProcTestCase):
    def test_compiled(self) -> None:
        compiled = torch.compile(add_up, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert self.device.endswith(":0")


class SeveralRanks(DynamoDistributedMultiProcTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def test_compiled(self) -> None:
        with _dynamo_dist_per_rank_init(self.rank, self.world_size, backend="gloo"):
            compiled = torch.compile(add_up, backend="eager")
            assert compiled(torch.ones(2)).tolist() == [3, 3]

    def test_fake_group(self) -> None:
        with _dynamo_dist_per_rank_init(self.rank, self.world_size, fake_pg=True):
            assert dist.get_backend() == "fake"
        assert not dist.is_initialized()


if __name__ == "__main__":
    for case in (OneRank, SeveralRanks):
        results = run(case, timeout_s=100)
        print("outcome:", case.__name__, results.passed)
        print("\n".join([*results.errors.values(), *results.failures.values()]))

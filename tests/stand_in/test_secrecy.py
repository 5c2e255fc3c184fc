"""Nobody takes a stand-in for the real thing who does not want to."""

from __future__ import annotations

import logging

import pytest
import torch

import phalanx
from phalanx.torch_backend.untyped import dist


@pytest.mark.ranks(2)
def test_a_group_says_what_it_is(nccl: torch.device) -> None:
    world = dist.group.WORLD
    assert dist.get_backend() == "nccl"
    assert "phalanx standing in for nccl" in repr(world)
    assert phalanx.is_stand_in()
    assert phalanx.is_stand_in(world)
    sub_group = dist.new_group([0, 1])
    assert "phalanx standing in for nccl" in repr(sub_group)
    assert phalanx.is_stand_in(sub_group)


@pytest.mark.ranks(2)
def test_the_log_says_it_once(gpus: int, rank: int, caplog: pytest.LogCaptureFixture) -> None:
    with phalanx.stand_in_for("nccl"), caplog.at_level(logging.WARNING, logger="phalanx"):
        dist.init_process_group("nccl")
        dist.new_group([0, 1])
        dist.destroy_process_group()
    told = [record.getMessage() for record in caplog.records if record.name == "phalanx"]
    line = "phalanx is standing in for nccl: 2 ranks exchange data through memory of this machine"
    assert told == ([line] if rank == 0 else [])


@pytest.mark.ranks(2)
def test_a_group_of_phalanx_itself_is_no_stand_in() -> None:
    dist.init_process_group("phalanx")
    assert not phalanx.is_stand_in()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_group_of_torchs_own_gloo_is_no_stand_in() -> None:
    dist.init_process_group("gloo")
    assert not phalanx.is_stand_in()
    dist.barrier()  # Gloo fails where a peer leaves while it connects
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_group_with_a_stand_in_for_one_of_its_devices_is_one(gpus: int, rank: int) -> None:
    torch.cuda.set_device(rank)
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("cpu:phalanx,cuda:nccl")
        assert phalanx.is_stand_in()
        dist.destroy_process_group()

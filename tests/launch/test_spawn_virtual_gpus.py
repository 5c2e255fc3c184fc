"""Ranks of spawn() with virtual GPUs, whatever the process that starts them has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx import patches
from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import dist
from tests.virtual_gpus.in_child import in_child, run_script

_VARIABLES = ("PHALANX_VIRTUAL_GPUS", "PHALANX_VIRTUAL_GPU", "PHALANX_VIRTUAL_MEMORY", "PHALANX_STAND_IN")


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _seen() -> tuple[int, str, int]:
    """Return how many GPUs a rank sees, what they claim to be, and the memory of one in MiB."""
    number = torch.cuda.device_count()
    if not number:
        return 0, "", 0
    properties = torch.cuda.get_device_properties(0)
    return number, properties.name, properties.total_memory >> 20


_TWO_PLAIN = (2, "Virtual GPU (phalanx)", 16 << 10)


@pytest.mark.slow
def test_ranks_compute_on_virtual_gpus_and_nccl_is_phalanx() -> None:
    def program() -> tuple[Any, Any, bool, str]:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        tensor: Any = torch.full((2,), dist.get_rank() + 1.0, device="cuda", requires_grad=True)
        (tensor * 2).sum().backward()
        dist.all_reduce(tensor.grad)
        values = tensor.detach().clone()
        phalanx.connect().all_reduce(values)
        is_ours = phalanx.is_stand_in(dist.group.WORLD)
        dist.destroy_process_group()
        return tensor.grad.tolist(), values.tolist(), is_ours, os.environ["CUDA_VISIBLE_DEVICES"]

    results = phalanx.spawn(program, ranks=2, virtual_gpus=2, timeout_s=120)
    assert results == [([4.0, 4.0], [3.0, 3.0], True, "")] * 2


@pytest.mark.slow
def test_every_spawn_has_its_own_number_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert phalanx.spawn(_seen, ranks=1) == [(0, "", 0)]
    assert phalanx.spawn(_seen, ranks=1, virtual_gpus=2) == [_TWO_PLAIN]
    h100 = (3, "NVIDIA H100 80GB HBM3 (Virtual GPU)", 80 << 10)
    assert phalanx.spawn(_seen, ranks=1, virtual_gpus=3, virtual_gpu="H100") == [h100]
    assert phalanx.spawn(_seen, ranks=1) == [(0, "", 0)]
    monkeypatch.setenv("PHALANX_VIRTUAL_GPUS", "2")  # after the process that ranks are forked from has started
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert phalanx.spawn(_seen, ranks=1) == [_TWO_PLAIN]
    assert phalanx.spawn(_seen, ranks=1, virtual_gpus=0) == [(0, "", 0)]


@pytest.mark.slow
def test_the_process_that_spawns_stays_as_it_was() -> None:
    variables, changes = dict(os.environ), list(patches.changes())
    phalanx.spawn(_seen, ranks=1, virtual_gpus=2)
    assert (dict(os.environ), list(patches.changes())) == (variables, changes)
    assert not torch.cuda.is_available() or "Virtual GPU" not in torch.cuda.get_device_name()


_SPAWNS_ALSO = """
import torch, phalanx
before = phalanx.spawn(torch.cuda.device_count, ranks=1) if {early} else [0]
phalanx.virtual_devices(3, face="{face}", memory="1GiB")
def seen():
    module = torch.{face}
    tensor = torch.ones(2, device="{face}:2")
    phalanx.connect().all_reduce(tensor)
    return module.device_count(), module.mem_get_info()[1] >> 20, tensor.tolist()
def others():
    return torch.cuda.device_count(), hasattr(torch, "virtual")
inherited = phalanx.spawn(seen, ranks=2)
two, none = (phalanx.spawn(others, ranks=1, virtual_gpus=number) for number in (2, 0))
print(before, inherited, two, none, torch.{face}.device_count())
"""


@pytest.mark.slow
@pytest.mark.parametrize("face", ["cuda", "virtual"])
@pytest.mark.parametrize("early", [False, True], ids=["devices first", "spawn first"])
def test_ranks_inherit_the_devices_of_the_process_that_spawns(face: str, early: bool) -> None:
    ended = run_script(_SPAWNS_ALSO.format(face=face, early=early), CUDA_VISIBLE_DEVICES="")
    inherited = [(3, 1024, [2.0, 2.0])] * 2
    assert ended.stdout == f"[0] {inherited} [(2, False)] [(0, False)] 3\n", ended.stderr


@pytest.mark.slow
def test_a_variable_may_be_set_before_the_process_starts() -> None:
    text = "import phalanx, torch; print(phalanx.spawn(torch.cuda.device_count, ranks=1), torch.cuda.device_count())"
    ended = run_script(text, PHALANX_VIRTUAL_GPUS="2", CUDA_VISIBLE_DEVICES="")
    assert ended.stdout == "[2] 2\n", ended.stderr


@pytest.mark.slow
def test_stand_ins_follow_the_variable_of_each_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Any:
        dist.init_process_group("gloo")
        is_ours = phalanx.is_stand_in(dist.group.WORLD)
        dist.destroy_process_group()
        return is_ours

    assert phalanx.spawn(program, ranks=1) == [False]
    monkeypatch.setenv("PHALANX_STAND_IN", "gloo")
    assert phalanx.spawn(program, ranks=1) == [True]


@pytest.mark.slow
def test_what_keeps_a_rank_from_having_them_is_raised_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(phalanx.BuildError, match=r"virtual devices need a C\+\+ compiler"):
        phalanx.spawn(_seen, ranks=2, virtual_gpus=2, timeout_s=120)


def test_threads_share_the_devices_of_their_process_which_has_none() -> None:
    with pytest.raises(UsageError) as failure:
        phalanx.spawn(_seen, ranks=2, kind="thread", virtual_gpus=2)
    told, what_to_do = str(failure.value).splitlines()
    assert told == 'spawn: ranks of kind "thread" share the virtual devices of this process: none'
    assert what_to_do.startswith('  do       use kind="process", or let this process call phalanx.virtual_devices()')
    assert phalanx.spawn(abs, args=[-1], ranks=2, kind="thread", virtual_gpus=0) == [1, 1]


@in_child
@pytest.mark.slow
def test_threads_use_the_devices_that_their_process_has_set_up() -> None:
    phalanx.virtual_devices(2, face="cuda", gpu="t4")
    seen = (2, "Tesla T4 (Virtual GPU)", 16 << 10)
    assert phalanx.spawn(_seen, ranks=2, kind="thread", virtual_gpus=2) == [seen] * 2
    assert phalanx.spawn(_seen, ranks=2, kind="thread") == [seen] * 2
    asking = 'use kind="process", or ask for 2: virtual_gpus=2'
    others: list[tuple[dict[str, Any], str]] = [
        ({"virtual_gpus": 3}, asking),
        ({"virtual_gpus": 2, "virtual_gpu": "l4"}, f'{asking}, virtual_gpu="t4"'),
        ({"virtual_gpus": 0}, asking),
    ]
    for other, what_to_do in others:
        with pytest.raises(UsageError, match=r'of this process: 2 with face "cuda", gpu "t4", 16 GiB each') as failure:
            phalanx.spawn(_seen, ranks=2, kind="thread", **other)
        assert str(failure.value).splitlines()[1] == f"  do       {what_to_do}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"virtual_gpus": "4"}, r"spawn: virtual_gpus is '4'; give a whole number from 1 to 64, or 0 for none"),
        ({"virtual_gpus": 65}, "virtual_gpus is 65; give"),
        ({"virtual_gpus": -1}, "virtual_gpus is -1; give"),
        ({"virtual_gpus": True}, "virtual_gpus is True; give"),
        ({"virtual_gpus": 2, "virtual_gpu": "h1000"}, "spawn: virtual_gpu is 'h1000'; give one of plain, v100, t4"),
        ({"virtual_gpu": "h100"}, "virtual_gpu is for virtual GPUs; say how many, such as virtual_gpus=4"),
    ],
)
def test_bad_arguments_are_refused(options: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        phalanx.spawn(_seen, ranks=2, **options)

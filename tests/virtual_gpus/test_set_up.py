"""Setting up virtual devices: what is checked, what is refused, and what a process has afterwards."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

import phalanx
from phalanx.virtual_gpus import refusals
from phalanx.virtual_gpus.library import current
from phalanx.virtual_gpus.request import read_request
from phalanx.virtual_gpus.set_up import Setup, active
from tests.virtual_gpus.in_child import in_child, on_virtual_devices, run_script

_GIB = 1 << 30


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_devices": 0}, "num_devices is 0; give one from 1 to 64"),
        ({"num_devices": 65}, "num_devices is 65; give one from 1 to 64"),
        ({"num_devices": -1}, "num_devices is -1; give one from 1 to 64"),
        ({"num_devices": "4"}, "num_devices is '4'; give a whole number, such as 8"),
        ({"num_devices": 2.0}, "num_devices is 2.0; give a whole number, such as 8"),
        ({"num_devices": True}, "num_devices is True; give a whole number, such as 8"),
        ({"face": "gpu"}, "face is 'gpu'; give \"virtual\" for devices of their own type"),
        ({"face": None}, "face is None; give"),
        ({"races": "on"}, "races is 'on'; give one of off, warn, raise"),
        ({"races": True}, "races is True; give one of off, warn, raise"),
        ({"gpu": "h100"}, 'gpu is \'h100\', but only devices with face="cuda" can claim to be a GPU; add face="cuda"'),
        ({"gpu": "h1000", "face": "cuda"}, "gpu is 'h1000'; give one of plain, v100, t4, a100, "),
        ({"gpu": 8, "face": "cuda"}, "gpu is 8; give one of plain, v100, "),
        ({"memory": "16"}, 'memory is \'16\'; give a size with its unit, such as "16GiB" or "512MB", or bytes'),
        ({"memory": "16G"}, "memory is '16G'; give a size with its unit"),
        ({"memory": "much"}, "memory is 'much'; give a size with its unit"),
        ({"memory": "-1GiB"}, "memory is '-1GiB'; give a size with its unit"),
        ({"memory": 1.5}, "memory is 1.5; give a size with its unit"),
        ({"memory": True}, "memory is True; give a size with its unit"),
        ({"memory": 1000}, 'memory is 1000; give a size from "1MiB" to "1024TiB"'),
        ({"memory": "2000TiB"}, 'memory is \'2000TiB\'; give a size from "1MiB" to "1024TiB"'),
    ],
)
def test_a_bad_argument_is_refused_with_what_to_give(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(phalanx.UsageError) as failure:
        phalanx.virtual_devices(**{"num_devices": 2, **arguments})
    assert str(failure.value).startswith(f"virtual_devices: {told}")
    assert active() is None


def test_the_environment_fills_in_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHALANX_VIRTUAL_GPU", "PHALANX_VIRTUAL_MEMORY", "PHALANX_RACES"):
        monkeypatch.delenv(name, raising=False)
    assert read_request(2, "virtual", None, None, None) == Setup(2, "virtual", 16 * _GIB, "off")
    monkeypatch.setenv("PHALANX_VIRTUAL_MEMORY", "2GiB")
    monkeypatch.setenv("PHALANX_RACES", "warn")
    assert read_request(2, "virtual", None, None, None) == Setup(2, "virtual", 2 * _GIB, "warn")
    assert read_request(2, "virtual", None, "1GiB", "off") == Setup(2, "virtual", _GIB, "off")
    monkeypatch.setenv("PHALANX_VIRTUAL_GPU", "h100")
    assert read_request(2, "cuda", None, None, "off") == Setup(2, "cuda", 2 * _GIB, "off", "h100")
    assert read_request(2, "cuda", "L4", "1GiB", "off") == Setup(2, "cuda", _GIB, "off", "l4")
    assert read_request(2, "virtual", None, None, "off") == Setup(2, "virtual", 2 * _GIB, "off")
    monkeypatch.delenv("PHALANX_VIRTUAL_MEMORY")
    assert read_request(2, "cuda", None, None, "off") == Setup(2, "cuda", 80 * _GIB, "off", "h100")
    assert read_request(2, "virtual", None, None, "off") == Setup(2, "virtual", 16 * _GIB, "off")
    monkeypatch.setenv("PHALANX_VIRTUAL_MEMORY", "much")
    with pytest.raises(phalanx.UsageError, match="PHALANX_VIRTUAL_MEMORY is 'much'; give a size"):
        read_request(2, "virtual", None, None, None)


@in_child
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_the_devices_are_returned_and_remembered(face: Any) -> None:
    assert active() is None
    devices = phalanx.virtual_devices(3, face=face, memory="1GiB")
    assert devices == tuple(torch.device(face, index) for index in range(3))
    assert active() == Setup(3, face, _GIB, "off")
    assert phalanx.virtual_devices(3, face=face, memory=_GIB) == devices
    assert torch.ones(2, device=devices[2]).sum().item() == 2
    assert current().num_devices == 3


@on_virtual_devices(2)
@pytest.mark.parametrize("other", [{"num_devices": 3}, {"face": "cuda"}, {"memory": "1GiB"}, {"races": "warn"}])
def test_a_second_set_up_with_other_numbers_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(phalanx.UsageError) as failure:
        phalanx.virtual_devices(**{"num_devices": 2, **other})
    told = str(failure.value).splitlines()
    assert told[0] == "virtual devices are set up once in the life of a process"
    assert told[1] == '  there    2 with face "virtual", gpu "plain", 16 GiB each, races "off"'
    assert told[2].startswith("  asked    ")
    assert active() == Setup(2, "virtual", 16 * _GIB, "off")


def test_nothing_works_before_set_up() -> None:
    with pytest.raises(phalanx.UsageError, match=r"no virtual devices in this process; call phalanx\.virtual_dev"):
        current()


@in_child
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_set_up_is_refused_once_cuda_was_used(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(phalanx.UsageError, match=r"this process has already used CUDA\n  do  +call phalanx\.virtual"):
        phalanx.virtual_devices(2, face=face)


@in_child
def test_the_cuda_face_is_refused_beside_real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(phalanx.UsageError) as failure:
        phalanx.virtual_devices(2, face="cuda")
    told = str(failure.value)
    assert "would hide the real GPUs of this machine (4 visible)" in told
    assert 'CUDA_VISIBLE_DEVICES=""' in told
    assert 'face="virtual"' in told


@in_child
def test_the_cuda_face_is_refused_with_a_torch_for_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(phalanx.UsageError, match="built for ROCm"):
        phalanx.virtual_devices(2, face="cuda")


@in_child
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_another_device_type_of_its_own_is_named(face: Any) -> None:
    rename_privateuse1_backend("othernpu")
    with pytest.raises(phalanx.UsageError, match='another package has registered the device type "othernpu"'):
        phalanx.virtual_devices(2, face=face)


@in_child
def test_another_device_module_is_named() -> None:
    torch._register_device_module("privateuseone", types.ModuleType("other"))
    with pytest.raises(phalanx.UsageError, match=r"another package has registered torch\.privateuseone"):
        phalanx.virtual_devices(2)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0a0+git1234567", "3.0", "1.13.1+cu117"])
def test_another_torch_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(phalanx.UsageError, match=r"are for torch 2\.11 to 2\.15, and this is torch "):
        refusals.check_process("virtual")


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.2+cu132"])
def test_the_torch_versions_of_the_page_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    refusals.check_process("virtual")


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(phalanx.UsageError, match="need Linux, and this is darwin"):
        refusals.check_process("virtual")


@in_child
def test_a_set_up_that_failed_half_way_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_register_device_module", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        phalanx.virtual_devices(2)
    with pytest.raises(phalanx.UsageError, match=r"failed half-way \(division by zero\)"):
        phalanx.virtual_devices(2)
    assert active() is None


@in_child
def test_a_refused_set_up_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(phalanx.UsageError):
            phalanx.virtual_devices(2)
    assert len(phalanx.virtual_devices(2)) == 2


def _gradient(device: str) -> list[float]:
    tensor = torch.ones(3, device=device, requires_grad=True)
    (tensor * 2).sum().backward()
    assert tensor.grad is not None
    return list(tensor.grad.tolist())


@in_child
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_backward_works_after_one_on_the_cpu_before_set_up(face: Any) -> None:
    _gradient("cpu")
    phalanx.virtual_devices(2, face=face)
    assert _gradient(f"{face}:1") == [2, 2, 2]


@in_child
def test_backward_works_in_a_child_forked_after_one_on_the_cpu() -> None:
    _gradient("cpu")
    child = os.fork()
    if child == 0:
        phalanx.virtual_devices(2)
        os._exit(0 if _gradient("virtual:1") == [2, 2, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@on_virtual_devices(2)
def test_a_child_forked_after_set_up_has_the_devices() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if active() is not None and _gradient("virtual:1") == [2, 2, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_END_RIGHT_AFTER_BACKWARD = """
import phalanx, torch
devices = phalanx.virtual_devices(4, face="{face}")
tensors = [torch.ones(1000, device=device, requires_grad=True) for device in devices]
sum((tensor * 2).sum().to(devices[0]) for tensor in tensors).backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_a_program_may_end_right_after_backward(face: str) -> None:
    for _ in range(3):
        ended = run_script(_END_RIGHT_AFTER_BACKWARD.format(face=face))
        assert ended.returncode == 0, ended.stderr


_COUNT = """
import torch
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(2, device="cuda:2").sum().item())
"""


@pytest.mark.slow
def test_the_environment_gives_a_program_virtual_gpus() -> None:
    ended = run_script(_COUNT, PHALANX_VIRTUAL_GPUS="3", PHALANX_VIRTUAL_MEMORY="1GiB")
    assert (ended.returncode, ended.stdout) == (0, "True 3 2.0\n"), ended.stderr


@pytest.mark.slow
def test_the_environment_has_phalanx_stand_in_for_nccl() -> None:
    text = "import torch.distributed as dist; print(dist.is_nccl_available())"
    ended = run_script(text, PHALANX_VIRTUAL_GPUS="1")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    ended = run_script(text, PHALANX_VIRTUAL_GPUS="1", PHALANX_STAND_IN="none")
    assert (ended.returncode, ended.stdout) == (0, f"{torch.distributed.is_nccl_available()}\n"), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PHALANX_VIRTUAL_GPUS": "many"}, 'PHALANX_VIRTUAL_GPUS is "many"; give a whole number up to 64'),
        ({"PHALANX_VIRTUAL_GPUS": "2", "PHALANX_VIRTUAL_MEMORY": "2"}, "PHALANX_VIRTUAL_MEMORY is '2'; give a size"),
    ],
)
def test_a_bad_variable_is_named_by_import_torch(variables: dict[str, str], told: str) -> None:
    ended = run_script("import torch", **variables)
    assert ended.returncode == 1
    assert f"phalanx.errors.UsageError: {told}" in ended.stderr
    assert "EnvironmentRefused: PHALANX_VIRTUAL_GPUS" in ended.stderr.splitlines()[-1]

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices, run_script


@on_virtual_devices(4, face="cuda")
def test_torch_cuda_counts_the_devices() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch._C._cuda_getDeviceCount() == 4
    assert torch.backends.cuda.is_built()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@on_virtual_devices(2, face="cuda")
def test_hidden_gpus_are_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert torch.cuda.device_count() == 2


@on_virtual_devices(4, face="cuda")
def test_the_current_device_is_the_one_selected() -> None:
    torch.cuda.set_device(2)
    assert torch.ones(1, device="cuda").device == torch.device("cuda:2")
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        with torch.cuda.device_of(torch.ones(1, device="cuda:3")):
            assert torch.cuda.current_device() == 3
        with torch.cuda.device(-1):
            assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 2


@on_virtual_devices(2, face="cuda")
def test_each_thread_has_a_current_device_of_its_own() -> None:
    torch.cuda.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join(timeout=10)
    assert (seen, torch.cuda.current_device()) == ([0], 1)


@on_virtual_devices(2, face="cuda")
def test_an_index_that_is_not_there_is_named() -> None:
    torch.cuda.init()  # torch answers some of these without looking before
    uses: list[Callable[[], object]] = [
        lambda: torch.cuda.set_device(5),
        lambda: torch.cuda.device(5).__enter__(),
        lambda: torch.cuda.current_stream(5),
        lambda: torch.cuda.default_stream(5),
        lambda: torch.cuda.Stream(device=5),
        lambda: torch.cuda.memory_stats(5),
        lambda: torch.cuda.mem_get_info(5),
        lambda: torch.cuda.synchronize(5),
        lambda: torch.ones(1, device="cuda:5"),
        lambda: torch.ones(1).cuda(5),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"CUDA error: invalid device ordinal(.|\n)*5(.|\n)*there are 2 virtual"):
            use()


@on_virtual_devices(2, face="cuda")
def test_peers_are_the_other_devices() -> None:
    assert torch.cuda.can_device_access_peer(0, 1)
    assert not torch.cuda.can_device_access_peer(1, 1)
    torch.cuda.ipc_collect()


@on_virtual_devices(2, face="cuda")
def test_devices_can_be_made_the_default() -> None:
    torch.set_default_device("cuda:1")
    assert torch.ones(1).device == torch.device("cuda:1")
    torch.set_default_device(None)
    with torch.device("cuda:1"):
        assert torch.randn(1).device == torch.device("cuda:1")


@pytest.mark.slow
def test_a_whole_process_ends_well() -> None:
    ended = run_script(
        "import torch, phalanx; phalanx.virtual_devices(2, face='cuda')\n"
        "x = torch.ones(4, device='cuda:1', requires_grad=True); (x * 2).sum().backward(); print(x.grad.sum().item())"
    )
    assert (ended.returncode, ended.stdout) == (0, "8.0\n"), ended.stderr

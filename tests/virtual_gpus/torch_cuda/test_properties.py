from __future__ import annotations

import torch

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(2, face="cuda", memory="3GiB")
def test_a_device_says_that_it_is_virtual() -> None:
    properties = torch.cuda.get_device_properties("cuda:1")
    assert properties.name == torch.cuda.get_device_name(1) == "Virtual GPU (phalanx)"
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (8, 0)
    assert properties.total_memory == 3 << 30
    assert "Virtual GPU (phalanx)" in repr(properties)


@on_virtual_devices(2, face="cuda")
def test_every_field_torch_declares_is_there() -> None:
    properties = torch.cuda.get_device_properties(0)
    declared = (
        "name major minor multi_processor_count total_memory is_integrated is_multi_gpu_board "
        "max_threads_per_multi_processor max_threads_per_block gcnArchName warp_size uuid L2_cache_size clock_rate "
        "memory_clock_rate memory_bus_width shared_memory_per_block shared_memory_per_multiprocessor "
        "shared_memory_per_block_optin regs_per_multiprocessor pci_bus_id pci_device_id pci_domain_id"
    )
    assert [name for name in declared.split() if not hasattr(properties, name)] == []
    assert isinstance(properties, torch._C._CudaDeviceProperties)


@on_virtual_devices(2, face="cuda")
def test_two_devices_are_told_apart() -> None:
    first, second = (vars(torch.cuda.get_device_properties(index)) for index in range(2))
    assert str(first["uuid"]) != str(second["uuid"])
    assert first["pci_bus_id"] != second["pci_bus_id"]


@on_virtual_devices(1, face="cuda")
def test_capabilities_follow_from_the_architecture() -> None:
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert "compute_80" in torch.cuda.get_gencode_flags()
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_tf32_supported()
    assert torch.float16 in torch.accelerator.get_device_capability()["supported_dtypes"]


@on_virtual_devices(2, face="cuda", gpu="h100", memory=None)
def test_a_device_claims_to_be_what_was_asked_for() -> None:
    properties = torch.cuda.get_device_properties(1)
    assert properties.name == torch.cuda.get_device_name(0) == "NVIDIA H100 80GB HBM3 (Virtual GPU)"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_arch_list() == ["sm_90"]
    assert (properties.multi_processor_count, properties.total_memory) == (132, 80 << 30)
    assert vars(properties)["shared_memory_per_block_optin"] == 227 << 10
    assert torch.cuda.mem_get_info() == (80 << 30, 80 << 30)


@on_virtual_devices(1, face="cuda", gpu="t4", memory="1GiB")
def test_an_older_gpu_has_bfloat16_only_by_emulation_and_memory_can_be_given() -> None:
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    assert not torch.cuda.is_tf32_supported()
    assert torch.cuda.get_device_properties(0).total_memory == 1 << 30

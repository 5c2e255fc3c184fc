"""Which devices there are, which one is current, and waiting for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.patches import Names
from phalanx.virtual_gpus.stream_order import raise_failure
from phalanx.virtual_gpus.torch_cuda.ordinals import checked

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library

_CYCLES_PER_S = 1e9


def names(library: Library) -> Names:
    """Return what torch.cuda needs to count, select and wait for devices."""
    num_devices = library.num_devices

    def set_device(index: int) -> None:
        library.set_device(checked(index, num_devices))

    def exchange_device(index: int) -> int:
        if index < 0:
            return -1
        previous = library.current_device()
        set_device(index)
        return previous

    def maybe_exchange_device(index: int) -> int:  # a separate function: torch.compile handles both differently
        return exchange_device(index)

    def synchronize() -> None:
        library.synchronize(library.current_device())
        raise_failure("cuda")

    def synchronize_accelerator(index: int) -> None:
        library.synchronize(checked(index, num_devices))
        raise_failure("cuda")

    def sleep(cycles: int) -> None:
        library.sleep(cycles / _CYCLES_PER_S)

    def can_access_peer(index: int, peer: int) -> bool:
        return checked(index, num_devices) != checked(peer, num_devices)

    def no_nvml() -> int:
        # Otherwise torch asks the driver and CUDA_VISIBLE_DEVICES, which hides only real GPUs.
        return -1

    return {
        "torch._C._has_cuda": True,
        "torch._C._cuda_init": _nothing,
        "torch._C._cuda_isInBadFork": _false,
        "torch._C._cuda_getDeviceCount": lambda: num_devices,
        "torch._C._cuda_getDevice": library.current_device,
        "torch._C._cuda_setDevice": set_device,
        "torch._C._cuda_exchangeDevice": exchange_device,
        "torch._C._cuda_maybeExchangeDevice": maybe_exchange_device,
        "torch._C._cuda_hasPrimaryContext": lambda index: checked(index, num_devices) >= 0,
        "torch._C._cuda_synchronize": synchronize,
        "torch._C._accelerator_synchronizeDevice": synchronize_accelerator,
        "torch._C._cuda_sleep": sleep,
        "torch._C._cuda_canDeviceAccessPeer": can_access_peer,
        "torch._C._cuda_ipc_collect": _nothing,
        "torch.cuda._is_in_bad_fork": _false,
        "torch.cuda._exchange_device": exchange_device,
        "torch.cuda._maybe_exchange_device": maybe_exchange_device,
        "torch.cuda._device_count_nvml": no_nvml,
        "torch.cuda._device_count_amdsmi": no_nvml,
        "torch.cuda._cached_device_count": None,
    }


def _nothing() -> None:
    return None


def _false() -> bool:
    return False

from __future__ import annotations

import warnings

import pytest
import torch

from phalanx.devices.leaks import no_leaks
from tests.virtual_gpus.both_faces import on_both_faces

_MANY_BYTES = 32 * 1024 * 1024


@on_both_faces
def test_what_is_given_back_is_no_leak(device_type: str) -> None:
    kept = torch.empty(_MANY_BYTES, dtype=torch.int8, device=f"{device_type}:1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with no_leaks():
            tensor = torch.ones(_MANY_BYTES // 4, device=f"{device_type}:0")
            cycle = [tensor]
            cycle.append(cycle)  # type: ignore[arg-type]  # only the garbage collector frees it
            del tensor, cycle
        with no_leaks():
            del kept


@on_both_faces
def test_a_leak_names_the_place_the_device_and_the_numbers(device_type: str) -> None:
    leaked = []

    @no_leaks()
    def leak_on_one(size_bytes: int) -> int:
        """Leak."""
        leaked.append(torch.empty(size_bytes, dtype=torch.int8, device=f"{device_type}:1"))
        return len(leaked)

    kind = device_type.upper()
    with pytest.raises(RuntimeError, match=rf"{kind} driver API confirmed .+ on device 1.+") as caught:
        leak_on_one(_MANY_BYTES)
    words = str(caught.value)
    assert "leak_on_one" in words
    assert f"was 0 and is now reported as {_MANY_BYTES} on device 1" in words
    assert leak_on_one.__doc__ == "Leak."
    assert leak_on_one(0) == 2
    with pytest.raises(RuntimeError, match=rf"{kind} driver API confirmed a leak in one step! .+ on device 0.+"):
        with no_leaks("one step"):
            leaked.append(torch.empty(_MANY_BYTES, dtype=torch.int8, device=f"{device_type}:0"))


@on_both_faces
def test_an_exception_comes_through_unchecked(device_type: str) -> None:
    leaked = []

    @no_leaks()
    def fail() -> None:
        leaked.append(torch.ones(_MANY_BYTES // 4, device=device_type))
        raise KeyError(device_type)

    with pytest.raises(KeyError):
        fail()


@on_both_faces
def test_growth_that_only_the_allocator_sees_is_a_warning(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    leaked = []
    # A real driver's number does not grow when the allocator hands out what it had kept.
    always = module.mem_get_info(2)
    module.mem_get_info = lambda device=None: always
    with pytest.warns(RuntimeWarning, match="memory leak not verified by the driver API in a block! .+ on device 2"):
        with no_leaks():
            leaked.append(torch.ones(_MANY_BYTES // 4, device=f"{device_type}:2"))

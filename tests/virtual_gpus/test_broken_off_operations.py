"""What fails half-way leaves tensors as they were, and a full device is told of before the machine is full."""

from __future__ import annotations

import resource
import threading

import pytest
import torch

from tests.virtual_gpus.in_child import in_child, on_virtual_devices, run_script

_MIB = 1 << 20


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@on_virtual_devices(2, memory="64MiB")
def test_an_out_argument_survives_an_operation_that_fails() -> None:
    out = torch.ones(1000, device="virtual:1")
    with pytest.raises(torch.OutOfMemoryError):
        torch.add(torch.ones(1, device="virtual:1").expand(10**8), 1, out=out)
    far = torch.full((4000,), 10**9, device="virtual:1")
    with pytest.raises(IndexError):
        torch.index_select(torch.ones(10, device="virtual:1"), 0, far, out=out)
    others = [torch.full((1000,), 7.0) for _ in range(100)]  # would get memory that is given back too early
    assert (out.shape, out.unique().tolist()) == ((1000,), [1.0])
    out.fill_(3)
    assert all(other.unique().tolist() == [7.0] for other in others)


@on_virtual_devices(2, memory="64MiB")
def test_a_tensor_that_can_not_grow_keeps_its_size() -> None:
    tensor = torch.ones(10, device="virtual:1")
    with pytest.raises(torch.OutOfMemoryError):
        tensor.resize_(10**9)
    with pytest.raises(RuntimeError, match="negative dimension"):
        tensor.resize_(-5)
    assert tensor.sum().item() == 10
    grown = torch.empty(0, device="virtual:1").set_(tensor.untyped_storage(), 0, (100,), (1,))
    assert grown[:10].sum().item() == 10
    with pytest.raises(RuntimeError, match="invalid storage offset -5"):
        tensor.set_(tensor.untyped_storage(), -5, (10,), (1,))


@on_virtual_devices(2, memory="64MiB")
def test_a_result_that_has_no_room_is_refused_before_it_is_computed() -> None:
    column = torch.ones(20_000, 1, device="virtual:1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1\.49 GiB.*total capacity of 64\.00 MiB"):
        column @ column.T
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 500 * _MIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.arange(10**13, device="virtual:1")
    assert (column * 2).sum().item() == 40_000


@in_child
def test_memory_of_the_cpu_is_not_limited() -> None:
    import phalanx

    phalanx.virtual_devices(1, memory="1MiB")
    assert torch.ones(_MIB).sum().item() == _MIB


@on_virtual_devices(1)
def test_dropout_leaves_the_cpus_random_numbers_alone() -> None:
    inputs, rounds = torch.ones(1000, device="virtual"), 200
    torch.manual_seed(5)
    expected = [torch.rand(100) for _ in range(rounds)]
    stop = threading.Event()

    def drop() -> None:
        while not stop.is_set():
            torch.nn.functional.dropout(inputs)

    thread = threading.Thread(target=drop)
    torch.manual_seed(5)
    thread.start()
    try:
        drawn = [torch.rand(100) for _ in range(rounds)]
    finally:
        stop.set()
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(drawn, expected, strict=True))


@pytest.mark.slow
def test_a_stuck_backward_does_not_keep_a_process_from_ending() -> None:
    ended = run_script("""
import threading, torch, phalanx
phalanx.virtual_devices(1)
stuck, forever = threading.Event(), threading.Event()
def wait(grad):
    stuck.set()
    forever.wait()
x = torch.ones(1, device="virtual", requires_grad=True)
x.register_hook(wait)
threading.Thread(target=lambda: (x * 2).backward(), daemon=True).start()
assert stuck.wait(20)
print("the end")
""")
    assert ended.stdout == "the end\n", ended.stderr

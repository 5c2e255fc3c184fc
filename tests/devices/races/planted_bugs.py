"""Programs for torch.cuda with one mistake each in how streams wait for each other.

The two lines that race end in "# earlier" and "# here". On one rank with two virtual GPUs and a group of "nccl".
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.torch_backend.untyped import dist

SIZE = 4096


def result_used_before_the_side_stream_is_done() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(SIZE, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2  # earlier
    print(y.sum())  # here


def side_stream_starts_before_its_input_is_there() -> None:
    side = torch.cuda.Stream()
    x = torch.randn(SIZE, device="cuda")
    x.mul_(3)  # earlier
    with torch.cuda.stream(side):
        x.relu()  # here


def event_recorded_before_the_write() -> None:
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.zeros(SIZE, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        done.record()
        x.add_(1)  # earlier
    done.wait()
    x.exp()  # here


def batch_used_before_its_copy_is_waited_for() -> None:
    copies = torch.cuda.Stream()
    model = torch.nn.Linear(16, 4).cuda()
    batch = torch.randn(8, 16).pin_memory()
    with torch.cuda.stream(copies):
        on_device = batch.to("cuda", non_blocking=True)  # earlier
    model(on_device)  # here


def buffer_filled_on_a_stream_that_did_not_wait_for_its_allocation() -> None:
    side = torch.cuda.Stream()
    buffer = torch.empty(SIZE, device="cuda")  # earlier
    with torch.cuda.stream(side):
        buffer.fill_(1)  # here


def batch_freed_without_record_stream() -> None:
    copies = torch.cuda.Stream()
    weights = torch.ones(SIZE, device="cuda")
    for number in range(2):
        with torch.cuda.stream(copies):
            batch = torch.full((SIZE,), float(number), device="cuda")  # here
        torch.cuda.current_stream().wait_stream(copies)
        weights.mul_(batch)  # earlier
        del batch


def buffer_written_again_while_it_is_read() -> None:
    producer = torch.cuda.Stream()
    buffers = [torch.zeros(SIZE, device="cuda") for _ in range(2)]
    total = torch.zeros(SIZE, device="cuda")
    producer.wait_stream(torch.cuda.current_stream())
    for step in range(4):
        buffer = buffers[step % 2]
        with torch.cuda.stream(producer):
            buffer.fill_(step)  # here
        torch.cuda.current_stream().wait_stream(producer)
        total.add_(buffer)  # earlier


def sum_used_before_the_collective_is_waited_for() -> None:
    gradient = torch.ones(SIZE, device="cuda")
    work = dist.all_reduce(gradient, async_op=True)  # earlier
    gradient.div_(2)  # here
    work.wait()


def copy_to_the_host_read_too_early() -> None:
    losses = torch.ones(SIZE, device="cuda")
    on_host = losses.to("cpu", non_blocking=True)  # earlier
    print(on_host.mean())  # here
    losses.zero_()


def staging_buffer_filled_again_before_its_copy_is_done() -> None:
    staging = torch.empty(SIZE).pin_memory()
    on_device = torch.empty(SIZE, device="cuda")
    for step in range(2):
        staging.fill_(step)  # here
        on_device.copy_(staging, non_blocking=True)  # earlier


def gradients_clipped_on_a_stream_that_did_not_wait_for_backward() -> None:
    side = torch.cuda.Stream()
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    (weight * weight).sum().backward()  # earlier
    with torch.cuda.stream(side):
        _gradient_of(weight).clamp_(-1, 1)  # here


def activation_changed_while_backward_needs_it() -> None:
    side = torch.cuda.Stream()
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    hidden = weight * 3
    loss = hidden.exp().sum()  # here
    saved = loss.grad_fn.next_functions[0][0]._saved_result  # type: ignore[union-attr]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        saved.data.mul_(0.5)  # earlier
    loss.backward()


def other_gpu_reads_what_a_side_stream_still_writes() -> None:
    side = torch.cuda.Stream(device=0)
    x = torch.zeros(SIZE, device="cuda:0")
    side.wait_stream(torch.cuda.current_stream(0))
    with torch.cuda.stream(side):
        x.add_(1)  # earlier
    x.to("cuda:1")  # here


def slices_that_overlap() -> None:
    left, right = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(100, device="cuda")
    for stream in (left, right):
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(left):
        x[:60].fill_(1)  # earlier
    with torch.cuda.stream(right):
        x[50:].fill_(2)  # here


def pinned_buffer_read_by_a_blocking_copy_too_early() -> None:
    copies, on_device = torch.cuda.Stream(), torch.ones(SIZE, device="cuda")
    staging = torch.empty(SIZE, pin_memory=True)
    copies.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copies):
        staging.copy_(on_device, non_blocking=True)  # earlier
    torch.empty(SIZE, device="cuda").copy_(staging)  # here


def pinned_buffer_written_by_a_blocking_copy_too_early() -> None:
    copies, on_device = torch.cuda.Stream(), torch.ones(SIZE, device="cuda")
    staging = torch.ones(SIZE, pin_memory=True)
    with torch.cuda.stream(copies):
        kept = staging.to("cuda", non_blocking=True)  # earlier
    staging.copy_(on_device)  # here
    del kept


def result_grown_by_out_is_freed_without_record_stream() -> None:
    side = torch.cuda.Stream()
    x, result = torch.ones(SIZE, device="cuda"), torch.ones(10, device="cuda")
    result.resize_(0)
    torch.add(x, 1, out=result)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept = result * 2  # earlier
    del result
    torch.ones(SIZE, device="cuda")  # here
    del kept


def tensor_resized_while_it_is_written() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(SIZE, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)  # earlier
    x.resize_(2 * SIZE)  # here


def running_statistics_read_while_training_writes_them() -> None:
    side = torch.cuda.Stream()
    batch, mean, variance = (torch.ones(8, 16, device="cuda"), *torch.ones(2, 16, device="cuda"))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.nn.functional.batch_norm(batch, mean, variance, training=True)  # earlier
    print(mean.sum())  # here


def compressed_tensor_read_while_its_values_are_written() -> None:
    side = torch.cuda.Stream()
    x = torch.eye(16, device="cuda").to_sparse_csr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.values().mul_(2)  # earlier
    x.to_dense()  # here


def mask_assigned_a_number_which_waits_for_nothing() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(SIZE, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        mask = x > 0
        x[mask] = 2.0  # earlier
    print(x.sum())  # here


def _gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


# With the kind of race that is found in each.
BUGS = {
    result_used_before_the_side_stream_is_done: "streams",
    side_stream_starts_before_its_input_is_there: "streams",
    event_recorded_before_the_write: "streams",
    batch_used_before_its_copy_is_waited_for: "streams",
    buffer_filled_on_a_stream_that_did_not_wait_for_its_allocation: "allocation",
    batch_freed_without_record_stream: "reuse",
    buffer_written_again_while_it_is_read: "streams",
    sum_used_before_the_collective_is_waited_for: "collective",
    copy_to_the_host_read_too_early: "host",
    staging_buffer_filled_again_before_its_copy_is_done: "host",
    gradients_clipped_on_a_stream_that_did_not_wait_for_backward: "streams",
    activation_changed_while_backward_needs_it: "streams",
    other_gpu_reads_what_a_side_stream_still_writes: "streams",
    slices_that_overlap: "streams",
    pinned_buffer_read_by_a_blocking_copy_too_early: "streams",
    pinned_buffer_written_by_a_blocking_copy_too_early: "streams",
    result_grown_by_out_is_freed_without_record_stream: "reuse",
    tensor_resized_while_it_is_written: "streams",
    running_statistics_read_while_training_writes_them: "streams",
    compressed_tensor_read_while_its_values_are_written: "streams",
    mask_assigned_a_number_which_waits_for_nothing: "streams",
}

"""Programs for torch.cuda whose streams wait for each other as they should.

On one rank with two virtual GPUs and a group of "nccl".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.torch_backend.untyped import dist

SIZE = 4096


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def side_stream_with_waits() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(SIZE, device="cuda")
    for _ in range(3):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        x.mul_(2)


def events_between_streams() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    first_done, second_done = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(first):
        x = torch.randn(SIZE, device="cuda")
        first_done.record()
    with torch.cuda.stream(second):
        first_done.wait()
        y = x.exp()
        second_done.record(second)
    torch.cuda.current_stream().wait_event(second_done)
    print((x + y).sum().item())


def prefetching_with_record_stream() -> None:
    copies, model = torch.cuda.Stream(), _model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [torch.randn(8, 16).pin_memory() for _ in range(6)]

    def prefetch(batch: Tensor) -> Tensor:
        with torch.cuda.stream(copies):
            return batch.to("cuda", non_blocking=True)

    coming = prefetch(batches[0])
    for number in range(len(batches)):
        torch.cuda.current_stream().wait_stream(copies)
        batch = coming
        batch.record_stream(torch.cuda.current_stream())
        coming = prefetch(batches[(number + 1) % len(batches)])
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def double_buffering_with_events() -> None:
    producer = torch.cuda.Stream()
    buffers = [torch.zeros(SIZE, device="cuda") for _ in range(2)]
    is_read = [torch.cuda.Event() for _ in buffers]
    total = torch.zeros(SIZE, device="cuda")
    producer.wait_stream(torch.cuda.current_stream())
    for step in range(6):
        buffer, event = buffers[step % 2], is_read[step % 2]
        with torch.cuda.stream(producer):
            event.wait()
            buffer.fill_(step)
        torch.cuda.current_stream().wait_stream(producer)
        total.add_(buffer)
        event.record()


def copies_between_gpus() -> None:
    x = torch.randn(SIZE, device="cuda:0")
    for _ in range(3):
        y = x.to("cuda:1", non_blocking=True)
        y.mul_(2)
        x.copy_(y, non_blocking=True)
        x.add_(1)
        del y


def pipeline_over_two_gpus() -> None:
    first, second = nn.Linear(16, 32).to("cuda:0"), nn.Linear(32, 4).to("cuda:1")
    for _ in range(3):
        hidden = first(torch.randn(8, 16, device="cuda:0")).relu()
        second(hidden.to("cuda:1")).sum().backward()


def pinned_copies_with_events() -> None:
    copies, done = torch.cuda.Stream(), torch.cuda.Event()
    staging, back = torch.empty(SIZE).pin_memory(), torch.empty(SIZE).pin_memory()
    on_device = torch.empty(SIZE, device="cuda")
    copies.wait_stream(torch.cuda.current_stream())
    for step in range(3):
        staging.fill_(step)
        with torch.cuda.stream(copies):
            on_device.copy_(staging, non_blocking=True)
            back.copy_(on_device, non_blocking=True)
            done.record()
        done.synchronize()
        assert back.numpy().mean() == step


def blocking_copies_and_items() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(SIZE, device="cuda")
        print(x.sum().item())
    y = x + 1  # the host has waited for the side stream
    with torch.cuda.stream(side):
        print(torch.tensor([1.0, 2.0], device="cuda").cpu(), x.tolist()[:2])
    print(y.cpu().mean())


def collectives_that_are_waited_for() -> None:
    gradients = [torch.ones(SIZE, device="cuda") for _ in range(3)]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    works.append(dist.all_reduce(gradients[0], async_op=True))  # behind the first, on the group's own stream
    unrelated = torch.ones(SIZE, device="cuda") * 2
    for work in works:
        work.wait()
    for gradient in gradients:
        gradient.div_(unrelated)
    dist.broadcast(gradients[0], 0)
    gathered = [torch.empty(SIZE, device="cuda")]
    dist.all_gather(gathered, gradients[0])
    print(gathered[0].sum())


def distributed_data_parallel() -> None:
    model = DistributedDataParallel(_model().cuda(), device_ids=[0], bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 16, device="cuda")).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def data_parallel() -> None:
    model = nn.DataParallel(_model().cuda(), device_ids=[0, 1])
    for _ in range(2):
        model(torch.randn(8, 16, device="cuda:0")).sum().backward()


def forward_and_backward_on_a_side_stream() -> None:
    side, model = torch.cuda.Stream(), _model().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(8, 16, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = model(batch).square().mean()
    loss.backward()  # autograd runs it on the side stream and lets this one wait
    torch.cuda.current_stream().wait_stream(side)
    optimizer.step()


def slices_and_columns_on_two_streams() -> None:
    left, right = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(64, 64, device="cuda")
    for stream in (left, right):
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(left):
        x[:32, :32].fill_(1)
        x[32:, 0::2].fill_(1)
    with torch.cuda.stream(right):
        x[:32, 32:].fill_(2)
        x[32:, 1::2].fill_(2)
    for stream in (left, right):
        torch.cuda.current_stream().wait_stream(stream)
    print(x.sum())


def mixed_precision_with_accumulation() -> None:
    model = _model().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for step in range(4):
        with torch.autocast("cuda"):
            loss = model(torch.randn(8, 16, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        if step % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def memory_freed_after_the_other_stream_was_waited_for() -> None:
    side = torch.cuda.Stream()
    for _ in range(3):
        x = torch.ones(SIZE, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = x.sum()
        torch.cuda.current_stream().wait_stream(side)
        del x
        print(total)


def operations_that_let_the_host_wait() -> None:
    side = torch.cuda.Stream()
    looks: tuple[Callable[[Tensor], object], ...] = (
        lambda x: torch.equal(x, x),
        lambda x: torch.allclose(x, x),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.to_sparse(),
        lambda x: x.index_put_((x > 0,), torch.ones(SIZE, device="cuda")),
    )
    for look in looks:
        with torch.cuda.stream(side):
            x = torch.ones(SIZE, device="cuda")
            look(x)
        x.add_(1)
        side.wait_stream(torch.cuda.current_stream())  # before the memory is used again


def views_of_pinned_memory_taken_before_its_copy_is_done() -> None:
    on_device, on_host = torch.ones(SIZE, device="cuda"), torch.empty(SIZE, pin_memory=True)
    on_host.copy_(on_device, non_blocking=True)
    done = torch.cuda.current_stream().record_event()
    array, rows = on_host.numpy(), on_host.view(-1, 4)
    assert on_host.is_set_to(on_host)
    assert on_host.is_pinned()
    done.synchronize()
    assert array.sum() == rows.sum()


def pinned_memory_that_is_copied_by_way_of_pageable_memory() -> None:
    on_host = torch.ones(64, 64, pin_memory=True)
    on_device = torch.empty(64, 32, device="cuda")
    on_device.copy_(on_host[:, ::2], non_blocking=True)
    on_host.zero_()
    on_host.to("cuda", torch.float64, non_blocking=True)
    on_host.fill_(1)
    on_host[:, ::2].copy_(on_device, non_blocking=True)
    print(on_host.sum())


def batch_norm_in_evaluation_on_two_streams() -> None:
    layer, batch = nn.BatchNorm1d(16).cuda().eval(), torch.randn(8, 16, device="cuda")
    torch.cuda.synchronize()
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            layer(batch)


def sparse_tensors_read_on_two_streams() -> None:
    dense = torch.eye(16, device="cuda")
    tensors = dense.to_sparse(), dense.to_sparse_csr()
    torch.cuda.synchronize()
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            for tensor in tensors:
                print((tensor @ dense).sum(), tensor.to_dense().sum(), tensor.neg().values().sum())


PROGRAMS = (
    side_stream_with_waits,
    events_between_streams,
    prefetching_with_record_stream,
    double_buffering_with_events,
    copies_between_gpus,
    pipeline_over_two_gpus,
    pinned_copies_with_events,
    blocking_copies_and_items,
    collectives_that_are_waited_for,
    distributed_data_parallel,
    data_parallel,
    forward_and_backward_on_a_side_stream,
    slices_and_columns_on_two_streams,
    mixed_precision_with_accumulation,
    memory_freed_after_the_other_stream_was_waited_for,
    operations_that_let_the_host_wait,
    views_of_pinned_memory_taken_before_its_copy_is_done,
    pinned_memory_that_is_copied_by_way_of_pageable_memory,
    batch_norm_in_evaluation_on_two_streams,
    sparse_tensors_read_on_two_streams,
)

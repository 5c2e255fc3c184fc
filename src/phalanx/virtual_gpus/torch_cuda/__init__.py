"""torch.cuda on virtual devices: unmodified CUDA programs run on a machine that has no GPU.

A torch without CUDA lacks the functions that torch.cuda calls in torch._C. Each module here makes them for one topic,
with the native part, and install() puts them in place, so that torch's own Python code does the rest:

    devices       which devices there are, which one is current, waiting for one
    properties    what a device says about itself
    streams       the classes below torch.cuda.Stream and torch.cuda.Event, and the current stream
    cudart        the functions of CUDA's runtime that torch binds
    memory        statistics, limits, memory by address
    snapshots     the memory in use, as torch.cuda.memory_snapshot() shows it
    generators    random numbers
    storage       storages made and resized by hand, and sent to other processes
    legacy_types  torch.cuda.FloatTensor and similar classes
    backends      torch.backends.cuda and torch.backends.cudnn
    nccl          torch.cuda.nccl within one process
    markers       torch.cuda.nvtx
    profiling     torch.profiler
    refusals      what only a real GPU can do, and what to do instead
    inductor      torch.compile: C++ code for device "cuda"
    flex_attention  torch.compile of flex_attention: plain operations

This is experimental: these are torch's private names, and its next version may have others.
"""

from __future__ import annotations

from phalanx.virtual_gpus.torch_cuda.install import install

__all__ = ["install"]

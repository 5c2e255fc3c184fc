"""Print what torch says to programs that ask for NCCL or a GPU without having one, or for a port that is taken."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from typing import Any

os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", CUDA_VISIBLE_DEVICES="")  # before torch is imported
torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")


def init_process_group(backend: str) -> None:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def listen_on_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, is_master=True)


def print_error(act: Callable[..., object], *arguments: object) -> None:
    try:
        act(*arguments)
    except (RuntimeError, AttributeError, AssertionError) as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    print_error(listen_on_taken_port)
    print_error(init_process_group, "nccl")
    print_error(torch.cuda.set_device, 0)
    print_error(torch.cuda.init)
    print_error(init_process_group, "phalanx")

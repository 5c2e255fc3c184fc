"""Stores and devices that a test makes by hand, through which its ranks meet."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Any

import torch

from phalanx.testing.unittest.torch_case import common_utils
from phalanx.torch_backend.untyped import dist

_ATTEMPTS = 10
_DEFAULT_TIMEOUT = timedelta(minutes=5)


def create_tcp_store(
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = _DEFAULT_TIMEOUT,
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> Any:
    """Make a store on a free port, and try another port if this one is taken meanwhile.

    Raises:
        RuntimeError: Ten ports in a row were taken, or another error occurred.
    """
    for attempt in range(_ATTEMPTS):
        port = common_utils.find_free_port()
        try:
            if jit_class:
                milliseconds = timeout // timedelta(milliseconds=1)
                return torch.classes.dist_c10d.TCPStore(addr, port, world_size, is_master, milliseconds)
            return dist.TCPStore(
                addr,
                port,
                world_size,
                is_master,
                timeout=timeout,
                wait_for_workers=wait_for_workers,
                use_libuv=use_libuv,
            )
        except RuntimeError as error:
            if "Address already in use" not in str(error) or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(random.random())
    raise AssertionError("unreachable")


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """Make a Gloo device on the loopback address, or on a named interface."""
    where = {"hostname": "127.0.0.1"} if interface is None else {"interface": interface}
    return dist.ProcessGroupGloo.create_device(**where, lazy_init=lazy_init)

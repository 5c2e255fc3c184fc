"""torch's store at MASTER_ADDR:MASTER_PORT, for backends that meet there; as with torchrun, no rank is its host.

The launcher listens at the port from the beginning, so no other job can get it. The process that answers is forked
when somebody first knocks: a job of phalanx's own groups never does.
"""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from typing import NoReturn

from phalanx.launch.rank_process import Job, die_with_parent

HOST = "127.0.0.1"


def listen() -> socket.socket:
    """Take a free port for as long as the socket is open."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST, 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def make_store_job() -> Job:
    """Describe the process that answers; its descriptor is the listening socket."""
    return Job(
        num_ranks=1,
        payload=b"",
        environment={},
        folder="/",
        path=[],
        arguments=[],
        meeting="",
        num_threads=1,
        entry=serve_store,
        num_shared=1,
        is_service=True,
    )


def serve_store(_: int, __: Job, descriptors: list[int], zygote: int) -> NoReturn:
    """Be the store until killed."""
    from torch._C._distributed_c10d import TCPStore

    die_with_parent(zygote)
    os.setpgid(0, 0)
    (listener,) = descriptors
    port = socket.socket(fileno=os.dup(listener)).getsockname()[1]
    store = TCPStore(
        HOST, port, is_master=True, timeout=timedelta(hours=1), wait_for_workers=False, master_listen_fd=listener
    )
    while store is not None:
        signal.pause()
    os._exit(0)

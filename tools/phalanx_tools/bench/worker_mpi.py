"""A rank of an MPI contender: takes orders over a Unix socket, times MPI calls, answers.

Runs in an environment of its own that has mpi4py and NumPy but not phalanx, so it stands alone.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import sys
import time
from typing import Any

# The same pages for everybody. NumPy asks for huge ones by default, torch does not; that alone doubles a copy's speed.
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD


def _pattern(count: int, rank: int) -> Any:
    return ((np.arange(count) % 97) + rank + 1).astype(np.float32)


def _make(operation: str, size: int) -> tuple[Any, Any, Any]:  # noqa: PLR0911 (one return per operation)
    """Return the call, its arguments, and a check of its effect after one call."""
    rank, ranks = COMM.rank, COMM.size
    count = max(size // 4, 1)
    part = max(count // ranks, 1)
    if operation == "all_reduce":
        data = _pattern(count, rank)
        want = sum(_pattern(count, r) for r in range(ranks))
        return COMM.Allreduce, (MPI.IN_PLACE, [data, MPI.FLOAT], MPI.SUM), lambda: np.array_equal(data, want)
    if operation == "all_gather":
        inputs, output = _pattern(part, rank), np.zeros(part * ranks, np.float32)
        want = np.concatenate([_pattern(part, r) for r in range(ranks)])
        return COMM.Allgather, ([inputs, MPI.FLOAT], [output, MPI.FLOAT]), lambda: np.array_equal(output, want)
    if operation == "reduce_scatter":
        inputs, output = _pattern(part * ranks, rank), np.zeros(part, np.float32)
        want = sum(_pattern(part * ranks, r) for r in range(ranks))[rank * part : (rank + 1) * part]
        arguments = ([inputs, MPI.FLOAT], [output, MPI.FLOAT], MPI.SUM)
        return COMM.Reduce_scatter_block, arguments, lambda: np.array_equal(output, want)
    if operation == "broadcast":
        data = _pattern(count, rank)
        return COMM.Bcast, ([data, MPI.FLOAT], 0), lambda: np.array_equal(data, _pattern(count, 0))
    if operation == "all_to_all":
        inputs, output = _pattern(part * ranks, rank), np.zeros(part * ranks, np.float32)
        mine = slice(rank * part, (rank + 1) * part)
        want = np.concatenate([_pattern(part * ranks, r)[mine] for r in range(ranks)])
        return COMM.Alltoall, ([inputs, MPI.FLOAT], [output, MPI.FLOAT]), lambda: np.array_equal(output, want)
    if operation == "barrier":
        return COMM.Barrier, (), lambda: True
    if operation == "send_recv_far":  # with a rank in the other half, which is on another host if there are several
        return _make_exchange(count, (rank + ranks // 2) % ranks, is_first=rank < ranks // 2)
    return _make_exchange(count, rank ^ 1, is_first=rank % 2 == 0)


def _make_exchange(count: int, peer: int, *, is_first: bool) -> tuple[Any, Any, Any]:
    rank = COMM.rank
    buffer = np.zeros(count, np.float32)
    data, received = [_pattern(count, rank), MPI.FLOAT], [buffer, MPI.FLOAT]

    def exchange_first() -> None:
        COMM.Send(data, peer)
        COMM.Recv(received, peer)

    def exchange_second() -> None:
        COMM.Recv(received, peer)
        COMM.Send(data, peer)

    call = exchange_first if is_first else exchange_second
    return call, (), lambda: np.array_equal(buffer, _pattern(count, peer))


def _time(call: Any, arguments: Any, iterations: int) -> float:
    bound = functools.partial(call, *arguments)
    COMM.Barrier()
    start = time.perf_counter()
    for _ in itertools.repeat(None, iterations):
        bound()
    return time.perf_counter() - start


def serve(address: str) -> None:
    """Work for the controller until it closes the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address if address.startswith("/") else "\0" + address)
    stream = connection.makefile("rw")
    stream.write(json.dumps({"rank": COMM.rank, "version": MPI.Get_library_version().splitlines()[0]}) + "\n")
    stream.flush()
    prepared: dict[str, Any] = {}
    for line in stream:
        order = json.loads(line)
        if order["do"] == "prepare":
            prepared.clear()
            call, arguments, check = _make(order["operation"], order["bytes"])
            call(*arguments)
            prepared.update(call=call, arguments=arguments)
            answer: dict[str, Any] = {"correct": bool(check())}
        else:
            answer = {"elapsed_s": _time(prepared["call"], prepared["arguments"], order["iterations"])}
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


if __name__ == "__main__":
    serve(sys.argv[1])

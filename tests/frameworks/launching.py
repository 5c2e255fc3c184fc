"""Ranks that look to a framework as if torchrun had started them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from tests.run_ranks import run_ranks


def run_as_torchrun_would(ranks: int, function: Callable[..., Any]) -> list[Any]:
    """Call the function on every rank, with the variables of torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return run_ranks("process", ranks, _with_variables, port, function, timeout_s=120)


def _with_variables(port: str, function: Callable[..., Any]) -> Any:
    import warnings

    from phalanx.launch.context import current_context

    context = current_context()
    assert context is not None
    rank, size = str(context.rank), str(context.size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, NODE_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    warnings.simplefilter("ignore")  # of the frameworks, about themselves
    return function()

"""Futures of tensors that DDP's C++ reducer, its hooks and Python callers all accept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import torch

from phalanx.collectives import Work
from phalanx.torch_backend.completion import Completer, is_completing
from phalanx.torch_backend.pending_futures import pending_futures


def ready_future(tensors: list[Any], devices: Sequence[torch.device] = ()) -> torch.futures.Future[Any]:
    """Return a completed future.

    Args:
        tensors: Its value.
        devices: GPUs whose streams are put in order: what a callback starts there comes before what its waiters start.
    """
    if any(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float16 for tensor in tensors):
        # DDP's built-in compression hook reads the value in C++, where only a forked call's has the type of a list of
        # tensors. It costs ten times as much, so only the dtype that this hook produces pays for it.
        return cast("torch.futures.Future[Any]", torch._C.fork(_identity, tensors))
    future: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
    future.set_result(tensors)
    return future


def _identity(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors


def future_of(
    work: Work, tensors: list[Any], completer: Completer, devices: Sequence[torch.device] = ()
) -> torch.futures.Future[Any]:
    """Return a future of the tensors, which may be on their way.

    Python callers get it completed: their callbacks then run at once, on their own thread, so that callbacks which
    start further collectives do so in the same order on every rank. DDP's reducer (C++) gets it as it is, so that
    communication overlaps with the backward pass.

    Raises:
        PhalanxError: The operation has failed.
    """
    has_types = any(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float16 for tensor in tensors)
    if has_types or is_completing() or work.done() or _is_asked_from_python():
        work.wait()
        return ready_future(tensors, devices)
    raw, future = _future_on_its_way(work, tensors, devices)
    completer.when_done(work, lambda: raw.set_result(None))
    return future


def promised_future(
    work: Work, tensors: list[Any], completer: Completer, devices: Sequence[torch.device]
) -> torch.futures.Future[Any]:
    """Return a future of a GPU's tensors for Python code: one per thread may be on its way, see pending_futures.py.

    Raises:
        PhalanxError: The operation has failed.
    """
    if not is_completing() and not work.done():
        raw, future = _future_on_its_way(work, tensors, devices)
        if pending_futures.give(raw, work, completer):
            return future
    pending_futures.await_own()
    work.wait()
    return ready_future(tensors, devices)


def _future_on_its_way(
    work: Work, tensors: list[Any], devices: Sequence[torch.device]
) -> tuple[torch.futures.Future[Any], torch.futures.Future[Any]]:
    """Return a future to be completed with anything, and the one that it completes with the tensors or the error."""
    raw: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))

    def deliver(_: torch.futures.Future[Any]) -> list[Any]:
        # set_exception() would be visible to Python alone, and C++ would take the exception for the tensors. What a
        # callback raises is an error everywhere.
        error = work.exception()
        if error is not None:
            raise error
        return tensors

    return raw, raw.then(deliver)


def _is_asked_from_python() -> bool:
    """Tell whether get_future() was called by Python code: then the calling frame names it."""
    try:
        caller = sys._getframe(3)
    except ValueError:
        return False
    return "get_future" in caller.f_code.co_names

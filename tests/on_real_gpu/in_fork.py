"""Call something in a child that is forked from this very process, CUDA and all."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from typing import Any

_LONGEST_S = 30


def in_fork(call: Callable[[], Any]) -> Any:
    """Return what the call returns, or raise what became of the child."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(call, sender))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child.start()
    sender.close()
    try:
        if not receiver.poll(_LONGEST_S):
            raise AssertionError("the forked child hangs")
        return receiver.recv()
    except EOFError:
        child.join(_LONGEST_S)
        raise AssertionError(f"the forked child ended with {child.exitcode}") from None
    finally:
        child.kill()
        child.join(_LONGEST_S)


def _tell(call: Callable[[], Any], sender: Any) -> None:
    try:
        told = call()
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
    sender.send(told)
    sender.close()
    os._exit(0)  # what the parent has on its GPU is not the child's to clean up

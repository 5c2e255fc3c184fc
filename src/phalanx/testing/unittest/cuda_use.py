"""Tell whether this process uses CUDA. If so, its forks can't, and ranks must be started as new processes."""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
from collections.abc import Callable

import torch

_NOT_INITIALIZED = 3
_logger = logging.getLogger(__name__)


def must_start_afresh(target: Callable[..., None]) -> bool:
    """Tell whether ranks that run `target` can't be forked from this process, and say so in the log.

    A class that is defined inside a function can't be sent to a new process, so its ranks are forked in any case.
    """
    if not is_cuda_in_use():
        return False
    try:
        pickle.dumps(target)
    except (pickle.PicklingError, AttributeError, TypeError):
        _logger.warning("CUDA is in use in the main process: ranks forked from it can't use a GPU")
        return False
    _logger.warning(
        "CUDA is in use in the main process, so ranks can't be forked from it and are started one by one, which is "
        "slow; leave CUDA to the ranks"
    )
    return True


def is_cuda_in_use() -> bool:
    """Tell whether torch or any other library has started CUDA's driver here, without starting it."""
    return torch.cuda.is_initialized() or _has_driver_started()


def _has_driver_started() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # the driver's library is not loaded
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != _NOT_INITIALIZED

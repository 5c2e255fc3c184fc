"""torch's own TestCase, which suites need for assertEqual, and the flags of its module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from phalanx.errors import UsageError
from phalanx.settings import set_environment_defaults


def _load() -> Any:
    if importlib.util.find_spec("expecttest") is None:
        raise UsageError(
            "phalanx.testing.unittest: torch's TestCase needs the package expecttest, which is not installed\n"
            "  do       pip install expecttest"
        )
    # The module looks for GPUs when it is loaded. In the usual way, that would start the driver here, and no forked
    # rank could use a GPU.
    set_environment_defaults(PYTORCH_NVML_BASED_CUDA_CHECK="1")
    return importlib.import_module("torch.testing._internal.common_utils")


common_utils: Any = _load()
TestCase: Any = common_utils.TestCase
FILE_SCHEMA: str = common_utils.FILE_SCHEMA
IS_SANDCASTLE: bool = common_utils.IS_SANDCASTLE
TEST_CUDA: bool = common_utils.TEST_CUDA
TEST_HPU: bool = common_utils.TEST_HPU
TEST_XPU: bool = common_utils.TEST_XPU
TEST_WITH_ROCM: bool = common_utils.TEST_WITH_ROCM
TEST_WITH_TSAN: bool = common_utils.TEST_WITH_TSAN


@contextmanager
def devices_untouched() -> Iterator[None]:
    """Keep torch's setUp() from importing its list of devices, which starts CUDA in this process.

    setUp() uses the list only in torch's own CI, to find out whether a test is known to be slow or broken.
    """
    is_needed = common_utils.slow_tests_dict or common_utils.disabled_tests_dict
    if is_needed or "torch.testing._internal.common_device_type" in sys.modules:
        yield
        return
    with patch.object(common_utils, "remove_device_and_dtype_suffixes", lambda name: name):
        yield

"""Run one test with all combinations of some values, on the current ranks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.torch_backend.untyped import dist


def run_subtests(
    cls_inst: Any,
    subtest_config: Mapping[str, Sequence[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call a function with every combination of keyword arguments, each as a subtest, with a barrier after it.

    Args:
        cls_inst: The test case.
        subtest_config: The values of each keyword argument.
        test_fn: The function.
        test_args: Further arguments of every call.
        test_kwargs: Further keyword arguments of every call.
    """
    for values in itertools.product(*subtest_config.values()):
        chosen = dict(zip(subtest_config, values, strict=True))
        with cls_inst.subTest(**chosen):
            _forget_compiled()
            test_fn(*test_args, **test_kwargs, **chosen)
            _forget_compiled()
        dist.barrier()


def _forget_compiled() -> None:
    compiler: Any = sys.modules.get("torch._dynamo")  # if it is not loaded, nothing was compiled
    if compiler is not None:
        compiler.reset()

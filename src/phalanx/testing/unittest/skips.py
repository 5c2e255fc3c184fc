"""Skips that depend on the machine or the world. They are decided before ranks are made or, if necessary, on a rank.

A decorator stores a question on the test. The test case asks it before it makes ranks, so that a skip needs no ranks.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.settings import copy_environment
from phalanx.testing.unittest.hardware import at_least_x_gpu, device_counts
from phalanx.testing.unittest.skip_codes import TEST_SKIPS, TestSkip

_QUESTIONS = "phalanx_skip_questions"
_FEW_RANKS = 8

# Called with the test case; returns the skip that applies, or None.
Question = Callable[[Any], TestSkip | None]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def reason_to_skip(case: Any, test: Any) -> str | None:
    """Return why a test of this case must be skipped, if that is known before it runs."""
    if getattr(case, "_handle_test_skip", None) is not None:
        return None  # such a case handles skips itself
    for question in getattr(test, _QUESTIONS, ()):
        skip: TestSkip | None = question(case)
        if skip is not None:
            return skip.message
    return None


def ask_first(func: Callable[..., Any], question: Question, *, is_handled: bool = False) -> Callable[..., Any]:
    """Make a test skip if the question returns a skip.

    Args:
        func: The test.
        question: The question.
        is_handled: Whether the method `_handle_test_skip` of a case, if it has one, handles the skip instead.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        case = args[0] if args else None
        skip = question(case)
        if skip is None:
            return func(*args, **kwargs)
        if is_handled and _maybe_handle_skip_if_lt_x_gpu(args, skip.message):
            return None
        if skip.exit_code == TEST_SKIPS["generic"].exit_code:
            raise unittest.SkipTest(skip.message)  # an exit code alone would not say why
        sys.exit(skip.exit_code)

    # functools.wraps has copied the questions of the decorators below.
    setattr(wrapper, _QUESTIONS, (question, *getattr(func, _QUESTIONS, ())))
    return wrapper


def _maybe_handle_skip_if_lt_x_gpu(args: Sequence[Any], msg: str) -> bool:
    """Pass a skip to a case that handles skips itself; return whether it does."""
    handle = getattr(args[0], "_handle_test_skip", None) if args else None
    if handle is None:
        return False
    handle(msg)
    return True


def _world_size(case: Any) -> int:
    return int(copy_environment().get("WORLD_SIZE") or case.world_size)


def _is_mpi() -> bool:
    return copy_environment().get("BACKEND") == "mpi"


def skip_if_no_gpu(func: Callable[..., Any]) -> Callable[..., Any]:
    """Skip unless there is one GPU per rank."""

    def question(case: Any) -> TestSkip | None:
        if not device_counts():
            return TEST_SKIPS["no_cuda"]
        world_size = _world_size(case)
        return None if at_least_x_gpu(world_size) else TEST_SKIPS[f"multi-gpu-{world_size}"]

    return ask_first(func, question)


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Decorator:
    """Skip unless there are x accelerators; with allow_cpu, run also if there are none at all."""

    def question(_: Any) -> TestSkip | None:
        is_fine = at_least_x_gpu(x) or (allow_cpu and not device_counts())
        return None if is_fine else TEST_SKIPS[f"multi-gpu-{x}"]

    return functools.partial(ask_first, question=question, is_handled=True)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Decorator:
    """Skip for NCCL unless there are x GPUs. Other backends don't touch CUDA."""

    def question(_: Any) -> TestSkip | None:
        is_fine = backend != "nccl" or (torch.cuda.is_available() and torch.cuda.device_count() >= x)
        return None if is_fine else TEST_SKIPS[f"multi-gpu-{x}"]

    return functools.partial(ask_first, question=question, is_handled=True)


def require_n_gpus_for_nccl_backend(n: int, backend: str) -> Decorator:
    """Skip for NCCL unless there are n GPUs."""

    def question(_: Any) -> TestSkip | None:
        return TEST_SKIPS[f"multi-gpu-{n}"] if backend == "nccl" and torch.cuda.device_count() < n else None

    return functools.partial(ask_first, question=question)


def skip_if_small_worldsize(func: Callable[..., Any]) -> Callable[..., Any]:
    """Skip with fewer than 8 ranks, except under MPI."""

    def question(case: Any) -> TestSkip | None:
        return TEST_SKIPS["small_worldsize"] if not _is_mpi() and _world_size(case) < _FEW_RANKS else None

    return ask_first(func, question)


def skip_if_odd_worldsize(func: Callable[..., Any]) -> Callable[..., Any]:
    """Skip with an odd number of ranks, except under MPI."""

    def question(case: Any) -> TestSkip | None:
        return TEST_SKIPS["odd_worldsize"] if not _is_mpi() and _world_size(case) % 2 else None

    return ask_first(func, question)


def import_transformers_or_skip() -> Decorator:
    """Skip where transformers can't be imported."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                importlib.import_module("transformers").AutoModelForMaskedLM  # noqa: B018
                return func(*args, **kwargs)
            except (ImportError, AttributeError):
                sys.exit(TEST_SKIPS["importerror"].exit_code)

        is_missing = importlib.util.find_spec("transformers") is None
        return ask_first(wrapper, lambda _: TEST_SKIPS["importerror"] if is_missing else None)

    return decorate

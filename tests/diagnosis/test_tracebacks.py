"""Tracebacks without the calls inside phalanx and torch."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import torch

import phalanx
from phalanx.diagnosis.tracebacks import format_error, identify, is_from_inside, without_internal_frames


def _caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError


def _bad_layer() -> None:
    torch.nn.Linear(3, 4)(torch.ones(5))


def _chained() -> None:
    try:
        _bad_layer()
    except RuntimeError as error:
        raise ValueError("training failed") from error


def test_calls_inside_torch_are_one_line() -> None:
    error = _caught(_bad_layer)
    short = format_error(error, is_full=False)
    assert "linear.py" not in short
    assert "\n  ... 3 calls inside torch (PHALANX_FULL_TRACE=1 shows them)\nRuntimeError: mat1" in short
    assert "torch.nn.Linear(3, 4)(torch.ones(5))" in short
    assert format_error(error, is_full=True) == "".join(traceback.format_exception(error))


def test_calls_inside_phalanx_are_folded_in_causes_too() -> None:
    def fail() -> None:
        try:
            _chained()
        except ValueError:
            phalanx.testing.ranks(0)

    short = format_error(_caught(fail), is_full=False)
    assert short.count("  ... ") == 2
    assert "1 call inside phalanx (" in short
    assert "direct cause" in short
    assert "During handling" in short


def test_calls_that_only_start_the_users_code_are_left_out() -> None:
    def fail() -> None:
        raise KeyError("batch")

    def call() -> None:
        torch.utils._pytree.tree_map(lambda _: fail(), [1])

    error = _caught(call)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # it begins inside torch
    short = format_error(error, is_full=False)
    assert short.startswith(f'Traceback (most recent call last):\n  File "{__file__}"')
    assert "..." not in short


def test_a_traceback_without_the_users_code_stays_whole() -> None:
    error = _caught(_bad_layer)
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert format_error(error, is_full=False) == format_error(error, is_full=True)
    assert not is_from_inside(error)


def test_equal_tracebacks_are_known_whatever_the_message() -> None:
    def fail(rank: int) -> None:
        raise ValueError(f"rank {rank}")

    first, second = (_caught(lambda rank=rank: fail(rank)) for rank in range(2))  # type: ignore[misc]
    assert identify(first) == identify(second)
    assert identify(first) != identify(_caught(_chained))


def test_frames_come_back_after_the_block() -> None:
    error = _caught(_chained)
    whole = format_error(error, is_full=True)
    with without_internal_frames(error):
        inside = "".join(traceback.format_exception(error))
        assert "linear.py" not in inside
        assert "torch.nn.Linear(3, 4)(torch.ones(5))" in inside
    assert format_error(error, is_full=True) == whole


@pytest.mark.parametrize("is_users", [True, False])
def test_an_error_of_phalanx_alone_is_known(is_users: bool) -> None:
    error = _caught(lambda: phalanx.spawn(print, ranks=0))
    if not is_users:
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
    assert is_from_inside(error) is not is_users

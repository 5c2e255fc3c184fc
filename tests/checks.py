"""What ranks use to check themselves where `assert` is not enough, or where spawn() has started them.

No pytest here: ranks of spawn() would have to import it, which takes longer than starting them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

Error = TypeVar("Error", bound=BaseException)


def equal(actual: object, expected: object, what: object = "") -> None:
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r} instead of {expected!r}")


def same(actual: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Check that two tensors have the same type, shape and bits."""
    equal((actual.dtype, actual.shape), (expected.dtype, expected.shape), what)
    actual, expected = _flat(actual), _flat(expected)
    if actual.numel() == 0 or torch.equal(actual.view(torch.uint8), expected.view(torch.uint8)):
        return
    bytes_differ = (actual.view(torch.uint8) != expected.view(torch.uint8)).nonzero().flatten()
    different = sorted({int(at) // actual.element_size() for at in bytes_differ})
    first = different[0]
    raise AssertionError(
        f"{what}: {len(different)} of {actual.numel()} {actual.dtype} values differ, "
        f"the first at {first}: {actual[first].item()} instead of {expected[first].item()}"
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as one block of host memory: there every type can be compared."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu").copy_(tensor.detach().reshape(-1))


def raised(kind: type[Error], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Error:
    """Return the exception that a call must raise."""
    try:
        result = call(*args, **kwargs)
    except kind as error:
        equal(type(error), kind, error)
        return error
    raise AssertionError(f"nothing was raised instead of {kind.__name__}; it returned {result!r}")


def leave_note(folder: Path, rank: int, value: Any) -> None:
    """Leave a value for the test, which gets no results when spawn() raises."""
    unfinished = folder / f"{rank}.unfinished"
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.rename(folder / f"{rank}.note")


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start

"""Whether a test that calls torch.compile has compiled anything: without a graph it passes and has tested nothing.

One test of torch 2.13 compiles nothing wherever it runs, with NCCL and real GPUs too: DDP breaks the graph, so that the
wrapped model becomes a frame of its own, and that model is a bare torch.nn.Linear, whose code Dynamo takes for its own
and leaves alone. So for tests that call torch.compile, Linear's forward counts as a user's code.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

PASSED_VACUOUSLY = "passed vacuously: it called torch.compile and nothing was compiled"
_NO_FILE_OF_TORCH = "<a user's model>"  # Dynamo goes by the file's name


class CompileWatch:
    """Counts calls of torch.compile in this process and in those forked from it."""

    def __init__(self) -> None:
        self._num_calls = 0

    def install(self) -> None:
        """Begin to count."""
        import torch

        real: Any = torch.compile

        @functools.wraps(real)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if not self._num_calls:
                torch.nn.Linear.forward = _as_user_code(torch.nn.Linear.forward)  # type: ignore[method-assign]
            self._num_calls += 1
            return real(*args, **kwargs)

        torch.compile = compile

    def found_nothing(self) -> bool:
        """Return whether torch.compile was called and no graph came of it."""
        if not self._num_calls:
            return False
        from torch._dynamo.utils import counters

        return not counters["stats"]["unique_graphs"]


def _as_user_code(function: Any) -> Any:
    code = function.__code__.replace(co_filename=_NO_FILE_OF_TORCH)
    names = {**function.__globals__, "__name__": _NO_FILE_OF_TORCH}
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    return functools.wraps(function)(copy)

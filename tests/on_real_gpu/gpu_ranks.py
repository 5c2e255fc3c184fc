"""How the tests on real GPUs run: several ranks on each, in processes that stay from test to test."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.testing.real_gpus import look_for_gpus
from tests.torch_training.training_ranks import TORCHS_OWN_WARNINGS

_ABSENCE = look_for_gpus().absence  # asks NVML, not CUDA: this process will be forked

needs_gpu = pytest.mark.skipif(bool(_ABSENCE), reason=f"needs a GPU: {_ABSENCE}")


def on_gpu(num_ranks: int | list[int], kind: str = "pool", **options: Any) -> pytest.MarkDecorator:
    """Return the marker of a test whose ranks use real GPUs; without any it is skipped, and says so."""
    return pytest.mark.ranks(num_ranks, device="cuda", kind=kind, timeout=90, **options)


def through_torch(num_ranks: int | list[int]) -> list[pytest.MarkDecorator]:
    """Return the marks of a module whose ranks have torch's default process group, over phalanx."""
    return [
        pytest.mark.slow,
        on_gpu(num_ranks),
        pytest.mark.usefixtures("process_group"),
        *(pytest.mark.filterwarnings(f"ignore:{message}") for message in TORCHS_OWN_WARNINGS),
    ]

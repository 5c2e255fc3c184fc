"""How the tests of training run: on ranks that have torch's default process group, over phalanx."""

from __future__ import annotations

import pytest

# What torch warns of by itself, whatever the backend: beginnings of the messages.
TORCHS_OWN_WARNINGS = (
    r"`torch.jit.*` is deprecated",  # importing ZeroRedundancyOptimizer
    r"`TorchScript` support for functional optimizers is deprecated",  # its overlap with DDP
    r"`torch.distributed.*` is deprecated",  # 2.13 has other names for what 2.11 has
    r"Dynamo does not know how to trace the builtin",  # the options objects of torch.distributed
)


def trains_on(num_ranks: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a module; a test may have a number of ranks of its own."""
    return [
        pytest.mark.slow,
        pytest.mark.ranks(num_ranks, timeout=300),  # a busy machine compiles slowly
        pytest.mark.usefixtures("process_group"),
        *(pytest.mark.filterwarnings(f"ignore:{message}") for message in TORCHS_OWN_WARNINGS),
    ]

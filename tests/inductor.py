"""Whether torch.compile can write code here."""

from __future__ import annotations

import pytest
import torch

needs_inductor = pytest.mark.skipif(
    " " in torch.__file__,
    reason="torch's Inductor does not quote its own path for the compiler, and there is a space in it",
)

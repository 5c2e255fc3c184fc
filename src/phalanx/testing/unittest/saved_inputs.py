"""Modules that save their inputs, for tests of how inputs are cast."""

from __future__ import annotations

import torch
from torch import nn

_WIDTH = 100


class SaveForwardInputsModule(nn.Module):
    """A linear layer.

    Args:
        forward_inputs: A dictionary that gets each module's last input.
        cast_forward_inputs: Whether the input is cast to the weight's type.
    """

    def __init__(self, forward_inputs: dict[nn.Module, torch.Tensor], cast_forward_inputs: bool) -> None:
        super().__init__()
        self.l = nn.Linear(_WIDTH, _WIDTH)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save the input, then apply the layer."""
        self.forward_inputs[self] = x
        given = x.to(self.l.weight.dtype) if self.cast_forward_inputs else x
        result: torch.Tensor = self.l(given)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two such layers; it also saves its own input."""

    def __init__(self, forward_inputs: dict[nn.Module, torch.Tensor], cast_forward_inputs: bool) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save the input, then apply both layers."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.c2(self.c1(x))
        return result

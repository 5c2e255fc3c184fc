"""Fresh random tensors that every rank can make again, and the float64 results they must lead to.

Values come in chunks with a seed each, so that a reference needs little memory however large the tensor is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_CHUNK = 4 << 20
_EPSILON = 2.0**-24  # half of what float32 can tell apart at 1
_PRIME = 1_000_003


class RandomData:
    """Normal values of one case, named by keys such as (rank, block)."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._generator = torch.Generator(device)

    def fill(self, tensor: Tensor, *key: int) -> Tensor:
        """Fill a flat tensor with the values of the key, and return it."""
        for number, (start, stop) in enumerate(_chunks(tensor.numel())):
            self._generate(tensor[start:stop], number, key)
        return tensor

    def is_sum(self, result: Tensor, keys: Sequence[tuple[int, ...]], num_calls: int = 1) -> bool:
        """Compare with the sum of the keys' values in float64; allow what float32 rounds off in any order.

        Args:
            num_calls: How often it was summed in place: each time but the first, it grows as often as there are keys.
        """
        growth = float(len(keys)) ** (num_calls - 1)
        allowed = num_calls * len(keys) * _EPSILON
        part = torch.empty(min(_CHUNK, result.numel()), device=self._device)
        for number, (start, stop) in enumerate(_chunks(result.numel())):
            total = torch.zeros(stop - start, dtype=torch.float64, device=self._device)
            magnitude = torch.zeros_like(total)
            for key in keys:
                values = self._generate(part[: stop - start], number, key).double()
                total += values
                magnitude += values.abs()
            # "not <=" rather than ">": a NaN that was left over is wrong, too.
            error = (result[start:stop].double() / growth - total).abs()
            if not bool((error <= magnitude * allowed).all()):
                return False
        return True

    def is_copy(self, result: Tensor, *key: int) -> bool:
        """Compare with the values of the key, bit for bit."""
        part = torch.empty(min(_CHUNK, result.numel()), device=self._device)
        for number, (start, stop) in enumerate(_chunks(result.numel())):
            if not torch.equal(result[start:stop], self._generate(part[: stop - start], number, key)):
                return False
        return True

    def _generate(self, chunk: Tensor, number: int, key: tuple[int, ...]) -> Tensor:
        seed = self._seed
        for word in (number, *key):
            seed = (seed * _PRIME + word + 1) % (1 << 63)
        self._generator.manual_seed(seed)
        return chunk.normal_(generator=self._generator)


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, _CHUNK):
        yield start, min(start + _CHUNK, count)

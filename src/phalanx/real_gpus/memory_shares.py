"""How much of a GPU's memory each rank may use: read the shares, check them and describe them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.byte_sizes import size_in_bytes
from phalanx.errors import UsageError

# What a process takes of a GPU before its first tensor, with the kernels that torch loads.
CONTEXT_BYTES = 600 << 20
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_FULL = 1 + 1e-6  # shares such as 1/3 are not exact


@dataclass(frozen=True)
class MemoryShare:
    """A part of a GPU's memory, including the CUDA context; "free", which has no limit, if neither number is given.

    Attributes:
        fraction: Of all its memory.
        size_bytes: Or so many bytes.
    """

    fraction: float = 0.0
    size_bytes: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether it is a limit at all."""
        return self.fraction > 0 or self.size_bytes > 0

    def fraction_of(self, total_bytes: int) -> float:
        """Return how much of a GPU with so much memory it is."""
        return self.size_bytes / total_bytes if self.size_bytes else self.fraction

    def for_tensors(self, total_bytes: int) -> int:
        """Return what is left for tensors, in bytes; negative when not even the context fits."""
        return (self.size_bytes or int(self.fraction * total_bytes)) - CONTEXT_BYTES

    def __str__(self) -> str:
        """Return it as read_share() takes it."""
        return f"{self.size_bytes}B" if self.size_bytes else f"{self.fraction:.9f}" if self.fraction else "free"


def read_share(text: str, name: str, *, num_sharing: int = 1) -> MemoryShare:
    """Read "even", "free", a fraction such as 0.2, or a size such as "10GiB".

    Args:
        text: What the user has written.
        name: What the user calls it.
        num_sharing: How many ranks share the GPU evenly; one alone has no limit.

    Raises:
        UsageError: It is none of these.
    """
    text = text.strip()
    if text == "even":
        return MemoryShare(fraction=1 / num_sharing) if num_sharing > 1 else MemoryShare()
    if text == "free":
        return MemoryShare()
    if _NUMBER.fullmatch(text):
        if not 0 < float(text) <= _FULL:
            raise UsageError(f'{name} is "{text}"; give a fraction up to 1, or a size with its unit, such as "10GiB"')
        return MemoryShare(fraction=min(1.0, float(text)))
    try:
        size_bytes = size_in_bytes(text, name)
    except UsageError:
        raise UsageError(
            f'{name} is "{text}"; give "even", "free", a fraction such as 0.2, or a size such as "10GiB"'
        ) from None
    if size_bytes <= CONTEXT_BYTES:
        raise UsageError(f'{name} is "{text}", and a CUDA context alone takes about {in_gib(CONTEXT_BYTES)}; give more')
    return MemoryShare(size_bytes=size_bytes)


def read_shares(text: str, name: str, num_sharing: Sequence[int]) -> list[MemoryShare]:
    """Read one share for all ranks, or a list with one for each.

    Args:
        text: What the user has written.
        name: What the user calls it.
        num_sharing: For every rank, how many there are on its GPU.

    Raises:
        UsageError: They are no shares, or not as many as ranks.
    """
    parts = text.split(",")
    if len(parts) == 1:
        parts *= len(num_sharing)
    if len(parts) != len(num_sharing):
        raise UsageError(
            f'{name} is "{text}": {len(parts)} shares for {len(num_sharing)} ranks; give one for each, or one for all'
        )
    return [read_share(part, name, num_sharing=count) for part, count in zip(parts, num_sharing, strict=True)]


def check_shares(shares: Sequence[MemoryShare], name: str, where: str, memory_bytes: int) -> None:
    """Refuse shares that do not fit on their GPU together.

    Args:
        shares: Of all ranks on it.
        name: What the user calls them.
        where: What the GPU is called.
        memory_bytes: How much it has; 0 when that is not known.

    Raises:
        UsageError: They do not fit.
    """
    limited = [share for share in shares if share.is_limited]
    known = [share for share in limited if memory_bytes or not share.size_bytes]
    total = sum(share.fraction_of(memory_bytes) for share in known)
    if total > _FULL:
        raise UsageError(
            f"{name}: the shares of {len(known)} ranks on {where} come to {total:.2f} of its memory; make them "
            'smaller, or "free" if ranks may take from each other'
        )
    if memory_bytes and any(share.for_tensors(memory_bytes) <= 0 for share in limited):
        raise UsageError(
            f"{name}: {len(shares)} ranks on {where} leave one of them nothing for tensors: each has about "
            f"{in_gib(CONTEXT_BYTES)} for its CUDA context, and the GPU has {in_gib(memory_bytes)}. Use fewer ranks, "
            "or PHALANX_GPU_MEMORY=free for no limits"
        )


def describe_shares(shares: Sequence[MemoryShare], memory_bytes: int) -> str:
    """Say how much memory each rank may use for tensors."""
    texts = [_describe(share, memory_bytes) for share in shares]
    if len(set(texts)) > 1:
        return f"of its memory, ranks may use: {', '.join(texts)}"
    if not shares[0].is_limited:
        return "each may use all its memory, so one can leave the others without"
    return f"each may use {texts[0]} of its memory"


def _describe(share: MemoryShare, memory_bytes: int) -> str:
    if not share.is_limited:
        return "all"
    if memory_bytes or share.size_bytes:
        return in_gib(share.for_tensors(memory_bytes))
    return f"{share.fraction:.3g}"


def in_gib(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / 2**30:.1f} GiB"

"""Shares of a GPU's memory: as people write them, what is refused, and what is told."""

from __future__ import annotations

import pytest

from phalanx.errors import UsageError
from phalanx.real_gpus.memory_shares import (
    CONTEXT_BYTES,
    MemoryShare,
    check_shares,
    describe_shares,
    read_share,
    read_shares,
)

_GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("even", MemoryShare(fraction=0.25)),
        ("free", MemoryShare()),
        ("0.2", MemoryShare(fraction=0.2)),
        (".5", MemoryShare(fraction=0.5)),
        ("1", MemoryShare(fraction=1.0)),
        (" 10GiB ", MemoryShare(size_bytes=10 * _GIB)),
    ],
)
def test_shares_are_read_and_written_again(text: str, share: MemoryShare) -> None:
    assert read_share(text, "--gpu-memory", num_sharing=4) == share
    assert read_share(str(share), "PHALANX_GPU_MEMORY") == share


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'give "even", "free", a fraction'),
        ("most", 'give "even", "free", a fraction'),
        ("-0.5", 'give "even", "free", a fraction'),
        ("10", "give a fraction up to 1, or a size with its unit"),
        ("0", "give a fraction up to 1"),
        ("500MiB", "a CUDA context alone takes about 0.6 GiB"),
    ],
)
def test_what_is_no_share_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_share(text, "--gpu-memory")


def test_a_list_has_one_share_for_each_rank() -> None:
    shares = read_shares("even,0.5,2GiB", "--gpu-memory", [2, 2, 1])
    assert shares == [MemoryShare(0.5), MemoryShare(0.5), MemoryShare(size_bytes=2 * _GIB)]
    with pytest.raises(UsageError, match="2 shares for 3 ranks; give one for each, or one for all"):
        read_shares("0.1,0.2", "--gpu-memory", [3, 3, 3])


def test_one_alone_on_its_gpu_has_all_of_it() -> None:
    assert not read_share("even", "--gpu-memory", num_sharing=1).is_limited


@pytest.mark.parametrize(
    ("shares", "memory_bytes", "words"),
    [
        ([MemoryShare(0.5)] * 3, 0, "shares of 3 ranks on GPU 0 come to 1.50 of its memory"),
        ([MemoryShare(size_bytes=6 * _GIB)] * 2, 8 * _GIB, "shares of 2 ranks on GPU 0 come to 1.50"),
        ([MemoryShare(0.9), MemoryShare(size_bytes=2 * _GIB)], 8 * _GIB, "come to 1.15"),
        ([MemoryShare(1 / 16)] * 16, 8 * _GIB, "16 ranks on GPU 0 leave one of them nothing for tensors"),
    ],
)
def test_shares_that_do_not_fit_are_refused(shares: list[MemoryShare], memory_bytes: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_shares(shares, "--gpu-memory", "GPU 0", memory_bytes)


def test_shares_that_fit_or_whose_gpu_is_not_known_pass() -> None:
    check_shares([MemoryShare(1 / 3)] * 3, "--gpu-memory", "GPU 0", 8 * _GIB)
    check_shares([MemoryShare(size_bytes=6 * _GIB)] * 2, "--gpu-memory", "GPU 0", 0)
    check_shares([MemoryShare()] * 99, "--gpu-memory", "GPU 0", 8 * _GIB)


def test_what_each_may_use_is_told_without_its_context() -> None:
    half = MemoryShare(0.5)
    assert half.for_tensors(8 * _GIB) == 4 * _GIB - CONTEXT_BYTES
    assert describe_shares([half, half], 8 * _GIB) == "each may use 3.4 GiB of its memory"
    assert describe_shares([half, half], 0) == "each may use 0.5 of its memory"
    assert describe_shares([MemoryShare(), half], 8 * _GIB) == "of its memory, ranks may use: all, 3.4 GiB"
    assert describe_shares([MemoryShare()], 0).startswith("each may use all its memory")

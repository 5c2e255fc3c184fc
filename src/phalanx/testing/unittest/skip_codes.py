"""Exit codes of a rank which mean that the test can't run here, and why."""

from __future__ import annotations

import re
from typing import NamedTuple

# The test raised an exception. This is the only code with a meaning that is not a skip.
TEST_ERROR_EXIT_CODE = 10
_FIRST_MANY, _LAST_MANY, _MANY_OFFSET = 9, 46, 81


class TestSkip(NamedTuple):
    """A code and what it means."""

    exit_code: int
    message: str


TestSkip.__test__ = False  # type: ignore[attr-defined] # for pytest, which would take it for a test class


class _SkipTable(dict[str, TestSkip]):
    """The skips by name. Numbers of GPUs without a code of their own share the generic code."""

    def __missing__(self, name: str) -> TestSkip:
        found = re.fullmatch(r"multi-gpu-(\d+)", name)
        if found is None:
            raise KeyError(name)
        return TestSkip(self["generic"].exit_code, _need(int(found[1])))


def _need(count: int) -> str:
    return f"Need at least {count} CUDA device{'s' if count > 1 else ''}"


_GPU_CODES = {1: 75, 2: 77, 3: 80, 4: 81, 5: 82, 6: 83, 7: 84, 8: 85} | {
    count: count + _MANY_OFFSET for count in range(_FIRST_MANY, _LAST_MANY + 1)
}

TEST_SKIPS: dict[str, TestSkip] = _SkipTable(
    {
        "backend_unavailable": TestSkip(72, "Skipped because distributed backend is not available."),
        "small_worldsize": TestSkip(73, "Skipped due to small world size."),
        "odd_worldsize": TestSkip(87, "Skipped due to odd world size."),
        "no_cuda": TestSkip(74, "CUDA is not available."),
        **{f"multi-gpu-{count}": TestSkip(code, _need(count)) for count, code in _GPU_CODES.items()},
        "nccl": TestSkip(76, "c10d not compiled with NCCL support"),
        "skipIfRocm": TestSkip(78, "Test skipped for ROCm"),
        "no_peer_access": TestSkip(79, "Test skipped because no GPU peer access"),
        "generic": TestSkip(86, "Test skipped at subprocess level"),
        "importerror": TestSkip(88, "Test skipped due to missing import"),
        "no_accelerator": TestSkip(89, "accelerator is not available."),
    }
)


def meaning_of(code: object) -> str | None:
    """Return why a rank that ended with this code has skipped; None if it has not."""
    for skip in TEST_SKIPS.values():
        if skip.exit_code == code:
            return skip.message
    return None

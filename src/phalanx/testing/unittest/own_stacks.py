"""Stacks of a rank without what stands below the test: the runner, the harness, torch's wrapper of test methods."""

from __future__ import annotations

_BELOW = ("/phalanx/testing/", "/torch/testing/_internal/common_utils.py", "/unittest/")


def without_harness(stacks: str) -> str:
    """Leave out the frames of each thread up to the last one that is not the test's."""
    shown: list[str] = []
    start = 0  # where the frames of the present thread begin
    skips_source = False
    for line in stacks.splitlines():
        if not line.startswith("  File "):
            if line.startswith("    "):
                if not skips_source:
                    shown.append(line)
            elif line.strip():
                shown.append(line)
                start = len(shown)
            continue
        skips_source = any(part in line for part in _BELOW)
        if skips_source:
            del shown[start:]
        else:
            shown.append(line)
    return "\n".join(shown)

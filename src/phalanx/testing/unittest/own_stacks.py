"""Stacks and tracebacks of a rank without the frames below the test: the runner, the harness, torch's wrappers."""

from __future__ import annotations

import traceback

from phalanx.testing.rank_report import RankReport, report_failure

_BELOW = ("/phalanx/testing/", "/torch/testing/_internal/common_utils.py", "/unittest/")


def without_harness(stacks: str) -> str:
    """Leave out the frames of each thread up to the last one that does not belong to the test."""
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


def report_test_failure(error: BaseException) -> RankReport:
    """Describe the exception of a test."""
    above = error.__traceback__
    while above is not None and any(part in above.tb_frame.f_code.co_filename for part in _BELOW):
        above = above.tb_next
    shown = "".join(traceback.format_exception(type(error), error, above or error.__traceback__))
    return report_failure(error, shown)

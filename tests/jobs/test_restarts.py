"""What the terminal shows of an attempt that failed, after which all ranks start again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.launching import phalanx_run, write_script

pytestmark = pytest.mark.slow


def test_the_failure_of_an_earlier_attempt_is_told_in_full(tmp_path: Path, records: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, torch, phalanx
        group = phalanx.connect()
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        group.all_reduce(torch.ones(3 if is_first and group.rank == 2 else 4))
        """,
    )
    result = phalanx_run("-n", 3, "--restart", 1, script)
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert lines[0].startswith("phalanx run: rank 2 of 3 failed: MismatchError: all_reduce #1 of ")
    assert lines[0].endswith("; all ranks start again (1 of 1)")
    place = f"{tmp_path.name}/program.py:5"
    assert lines[1:5] == [
        f"  here        rank 2 of 3 called all_reduce sum float32 (3,), {place}",
        f"  differs     ranks 0-1 called all_reduce sum float32 (4,), {place}",
        "  do          give every rank the same shape, e.g. drop the last partial batch (drop_last=True)",
        f"  freed       ranks 0-1, in all_reduce #1, {place}",
    ]
    logs = re.fullmatch(r"  logs        (.*)/rank-\*\.err: all tracebacks, in full", lines[5])
    assert logs is not None
    assert lines[6:] == []
    assert [str(path) for path in records.iterdir()] == [logs[1]]
    assert "MismatchError" in (Path(logs[1]) / "rank-2.err").read_text()

"""The model of the protocol holds, and its planted bugs are found."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_RUN = Path(__file__).parent.parent / "native" / "model" / "run"
_WITHOUT = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(_WITHOUT), reason=f"not installed: {' '.join(_WITHOUT)}")
def test_every_property_holds_and_every_planted_bug_is_found() -> None:
    ended = subprocess.run([_RUN], capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "found     bells: planted: the poster looks for sleepers before it stores its word" in ended.stdout
    assert "failed" not in ended.stdout

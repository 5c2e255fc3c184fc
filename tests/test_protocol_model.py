"""The model of the protocol holds, and its planted bugs are found: two parts of it. `make model` checks all of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_RUN = Path(__file__).parent.parent / "native" / "model" / "run"
_WITHOUT = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(_WITHOUT), reason=f"not installed: {' '.join(_WITHOUT)}")
def test_no_wake_up_is_lost_and_the_planted_lost_wake_ups_are_found() -> None:
    ended = subprocess.run([_RUN, "steps", "bells"], capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "found     bells: planted: the poster looks for sleepers before it stores its word" in ended.stdout
    assert "failed" not in ended.stdout


@pytest.mark.skipif(bool(_WITHOUT), reason=f"not installed: {' '.join(_WITHOUT)}")
def test_a_model_that_does_not_exist_is_refused_by_name() -> None:
    ended = subprocess.run([_RUN, "bell"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stdout == 'model: there is no model "bell"; the models are bells chunks endings posts steps\n'

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_example_of_the_documentation_passes() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command.append(str(root / "examples" / "02_test_averages.py"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, check=False)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout

"""phalanx needs no NumPy, because torch does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")  # torch warns that NumPy is missing
import phalanx, torch

def work():
    group = phalanx.connect()
    values = group.all_gather_object({"rank": group.rank})
    value = group.broadcast_object("from 1" if group.rank == 1 else None, root=1)
    tensor = torch.ones(3)
    group.all_reduce(tensor)
    return values, value, tensor.tolist(), "numpy" in sys.modules and sys.modules["numpy"] is not None

print(phalanx.spawn(work, ranks=2))
"""


@pytest.mark.slow
def test_objects_are_exchanged_without_numpy(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('there is no NumPy here')")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    per_rank = ([{"rank": 0}, {"rank": 1}], "from 1", [2.0, 2.0, 2.0], False)
    assert done.stdout == f"{[per_rank, per_rank]}\n", done.stderr

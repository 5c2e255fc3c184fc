"""Operations of torch's own database on a virtual device: forward and backward as on the CPU.

A few calls of each here; `./dev operations` compares more of them.
"""

from __future__ import annotations

import re

import pytest

from tests.dev import TOOLS
from tests.virtual_gpus.in_child import run_script

_SWEEP = "from phalanx_tools.__main__ import main; main(['operations', '--face', '{face}', '--samples', '2'])"


@pytest.mark.slow
@pytest.mark.parametrize("face", ["virtual", "cuda"])
def test_every_operation_gives_the_cpus_results_and_gradients(face: str) -> None:
    pytest.importorskip("expecttest", reason="torch's own database of operations needs it")
    ended = run_script(_SWEEP.format(face=face), PYTHONPATH=TOOLS)
    told = re.search(r"(\d+) of (\d+) right, (\d+) calls and (\d+) gradients", ended.stdout)
    assert told is not None, ended.stdout + ended.stderr
    right, comparable, calls, gradients = (int(number) for number in told.groups())
    assert right == comparable, ended.stdout
    assert (comparable > 690, calls > 1300, gradients > 1300) == (True, True, True), told.group()
    assert ended.returncode == 0


@pytest.mark.slow
def test_a_wrong_operation_would_be_noticed() -> None:
    pytest.importorskip("expecttest", reason="torch's own database of operations needs it")
    ended = run_script(
        """
import torch, phalanx
phalanx.virtual_devices(2)
library = torch.library.Library("aten", "IMPL")
library.impl("sin", lambda x: x.cos(), "PrivateUse1", allow_override=True)
from phalanx_tools.__main__ import main
main(["operations", "--samples", "2", "sin", "floor"])
""",
        PYTHONPATH=TOOLS,
    )
    assert re.search(r"wrong +sin: ", ended.stdout), ended.stdout + ended.stderr
    assert "1 of 2 right" in ended.stdout
    assert ended.returncode == 1

"""torch's own tests as a command: what it runs, what it says, and that it can fail."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.dev import dev, run_with_tools

pytest.importorskip("expecttest", reason="torch's tests need expecttest")


def _upstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    return dev("upstream", *arguments)


@pytest.mark.slow
def test_tests_run_under_the_own_name(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.json"
    names = ("test_all_reduce_sum", "test_all_reduce_sum_cuda", "test_DistributedDataParallelCPU")
    done = _upstream("--mode", "plain", "--world", "3", "--json", str(outcomes), *names)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"upstream plain world 3: 2 passed, 1 skipped, 0 failed in \d+ s", last)
    assert {row["name"]: row["status"] for row in json.loads(outcomes.read_text())["outcomes"]} == {
        "test_all_reduce_sum": "passed",
        "test_all_reduce_sum_cuda": "skipped",
        "test_DistributedDataParallelCPU": "passed",
    }


@pytest.mark.slow
def test_tests_that_name_gloo_run_too() -> None:
    done = _upstream("--mode", "gloo", "--world", "2", "test_monitored_barrier_gloo", "test_ddp_logging_data_cpu")
    assert done.stdout.splitlines()[-1].startswith("upstream gloo world 2: 2 passed, 0 skipped, 0 failed")


@pytest.mark.slow
def test_a_failing_test_is_shown_with_its_rank_and_reason() -> None:
    program = (
        "import phalanx.torch_backend.process_group as module, torch\n"
        "module.PhalanxProcessGroup.broadcast = lambda self, tensors, *_, **__: self.barrier()\n"
        "from phalanx_tools.__main__ import main\n"
        "main(['upstream', '--mode', 'plain', '--world', '2', 'test_broadcast'])\n"
    )
    done = run_with_tools(program)
    assert done.returncode == 1
    assert "test_broadcast: failed" in done.stdout
    assert "rank 1 exited with 10" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("upstream plain world 2: 0 passed, 0 skipped, 1 failed")


@pytest.mark.slow
def test_a_test_that_does_not_exist_is_refused() -> None:
    done = _upstream("test_nothing_of_the_kind")
    assert done.returncode == 1
    assert "the suite has no test test_nothing_of_the_kind" in done.stderr

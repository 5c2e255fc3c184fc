"""Programs that srun starts on several hosts: with its variables, which is all of Slurm that phalanx looks at."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.hosts.bed import Host, hosts, needs_hosts
from tests.hosts.jobs import HostsJob

pytestmark = [needs_hosts, pytest.mark.slow]

_ORDINARY = str(Path(__file__).with_name("ordinary.py"))
_RANKS = (2, 2)
_TASKS = """
first=$1; tasks=$2; shift 2
task=0
while [ $task -lt $tasks ]; do
    SLURM_PROCID=$((first + task)) SLURM_LOCALID=$task "$@" & task=$((task + 1))
done
wait
"""


def _step(host: Host, num_hosts: int, num_tasks: int) -> list[str]:
    """Return the command that sets what srun sets for all tasks of a host."""
    return [
        "env", "SLURM_JOB_ID=4711", "SLURM_STEP_ID=2", f"SLURM_NTASKS={num_tasks}",
        f"SLURM_STEP_NUM_TASKS={num_tasks}", f"SLURM_STEP_NUM_NODES={num_hosts}", f"SLURM_NNODES={num_hosts}",
        f"SLURM_STEP_NODELIST=host[0-{num_hosts - 1}]", f"SLURM_NODEID={host.number}",
        "SLURM_LAUNCH_NODE_IPADDR=192.0.2.7",  # a login node, which nobody can reach
    ]  # fmt: skip


def _task_per_node(host: Host, num_hosts: int, num_ranks: int) -> list[str]:
    task = ["env", f"SLURM_PROCID={host.number}", "SLURM_LOCALID=0"]
    return [*_step(host, num_hosts, num_hosts), *task, sys.executable, "-m", "phalanx", "run", "-n", str(num_ranks)]


def _task_per_rank(host: Host, num_hosts: int, num_ranks: int) -> list[str]:
    step = _step(host, num_hosts, num_hosts * num_ranks)
    return [*step, "sh", "-c", _TASKS, "srun", str(host.number * num_ranks), str(num_ranks), sys.executable]


@pytest.mark.parametrize("command", [_task_per_node, _task_per_rank])
def test_srun_starts_an_unchanged_program(command: object) -> None:
    with hosts(2) as bed, HostsJob(bed, [_ORDINARY], _RANKS, command=command) as job:  # type: ignore[arg-type]
        assert job.wait(120) == [0, 0], [launcher.output for launcher in job.launchers]
        printed = "".join(launcher.output for launcher in job.launchers)
        assert sorted(re.findall(r"rank (\d) of 4 is done", printed)) == ["0", "1", "2", "3"], printed
        job.assert_nothing_left()

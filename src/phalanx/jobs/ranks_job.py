"""What the launcher asks the zygote for: processes that run the program as ranks."""

from __future__ import annotations

import os
import pickle
import secrets
import sys

from phalanx.jobs.environment import rank_variables
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.script import RankTask, run_script_rank
from phalanx.launch import rank_process
from phalanx.launch.rendezvous import Rendezvous


def make_ranks_job(
    job: Job, host: Host, rendezvous: Rendezvous, num_restarts: int, *, terminal: str
) -> rank_process.Job:
    """Describe the ranks.

    Args:
        job: What was asked for.
        host: Where they will run.
        rendezvous: Where torch's own backends meet.
        num_restarts: How often ranks of this job were started before.
        terminal: Where they ask for the terminal.
    """
    variables = rank_variables(
        job.num_ranks,
        rendezvous=rendezvous,
        run_id=host.run_id,
        restarts=num_restarts,
        max_restarts=job.max_restarts,
        nccl_errors=job.environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    )
    for rank, own in enumerate(job.rank_variables):
        variables[rank] |= own
    return rank_process.Job(
        num_ranks=job.num_ranks,
        payload=pickle.dumps(RankTask(job.program, variables, host.open_files)),
        environment={
            **job.environment,
            "OMP_NUM_THREADS": str(job.num_threads),
            "PHALANX_TERMINAL": terminal,
        },
        folder=os.getcwd(),
        path=[],
        arguments=list(sys.argv),
        meeting=f"job {os.getpid()}-{secrets.token_hex(8)}",
        num_threads=job.num_threads,
        entry=run_script_rank,
        num_shared=2,
    )

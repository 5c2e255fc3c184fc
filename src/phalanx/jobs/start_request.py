"""The request for ranks that the launcher sends to the zygote."""

from __future__ import annotations

import os
import pickle
import sys

from phalanx.jobs.environment import rank_variables, rank_variables_of_hosts
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.script import RankTask, run_script_rank
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.rendezvous import Rendezvous
from phalanx.launch.world import name_meeting


def make_start_request(
    job: Job, host: Host, rendezvous: Rendezvous, num_restarts: int, *, terminal: str
) -> StartRequest:
    """Make the request for the ranks of an attempt.

    Args:
        job: The job.
        host: What all attempts share.
        rendezvous: Where torch's own backends meet.
        num_restarts: How often the ranks were restarted before.
        terminal: The socket at which ranks ask for the terminal.
    """
    nccl_errors = job.environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if host.others is not None and host.others.start is not None:
        variables = rank_variables_of_hosts(
            host.others.start, job_id=host.others.job_id, max_restarts=job.max_restarts, nccl_errors=nccl_errors
        )
    else:
        variables = rank_variables(
            job.num_ranks,
            rendezvous=rendezvous,
            run_id=host.run_id,
            restarts=num_restarts,
            max_restarts=job.max_restarts,
            nccl_errors=nccl_errors,
        )
    for rank, own in enumerate(job.rank_variables):
        variables[rank] |= own
    return StartRequest(
        num_ranks=job.num_ranks,
        payload=pickle.dumps(RankTask(job.program, variables, host.open_files, is_quiet=not job.is_full_trace)),
        environment={
            **job.environment,
            "OMP_NUM_THREADS": str(job.num_threads),
            "PHALANX_TERMINAL": terminal,
        },
        folder=os.getcwd(),
        path=[],
        arguments=list(sys.argv),
        meeting=name_meeting(),
        num_threads=job.num_threads,
        entry=run_script_rank,
        num_shared=2,
    )

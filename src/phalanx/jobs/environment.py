"""The environment variables of ranks, which are those that torchrun sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.errors import UsageError
from phalanx.launch.rendezvous import Rendezvous
from phalanx.settings import ON_THE_SERVER, master_variables

if TYPE_CHECKING:
    from phalanx.launch.hosts.start import JobStart


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts of the form NAME=VALUE.

    Raises:
        UsageError: There is no "=", or no name before it.
    """
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or "\0" in text:
            raise UsageError(f'"{text}" does not set a variable; give NAME=VALUE')
        variables[name] = value
    return variables


def rank_variables_of_hosts(
    start: JobStart, *, job_id: str, max_restarts: int, nccl_errors: str
) -> list[dict[str, str]]:
    """Return the variables that torchrun sets for each rank of this host, if there are several.

    Args:
        start: What this host was told about the attempt.
        job_id: The name of the job.
        max_restarts: How often the ranks may be restarted.
        nccl_errors: TORCH_NCCL_ASYNC_ERROR_HANDLING as the user has set it, or "1".
    """
    hosts, (address, port) = start.hosts, start.master
    local_size, size = str(hosts.cards[hosts.number].num_ranks), str(hosts.num_ranks)
    common = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": str(hosts.number),
        "GROUP_WORLD_SIZE": str(hosts.num_hosts),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PHALANX_STORE": f"{address}:{port}:{ON_THE_SERVER}:{start.attempt}",
        "PHALANX_RDZV": start.place,
        "PHALANX_JOB_TOKEN": start.token,
        "PHALANX_JOB_ID": job_id,
        "TORCHELASTIC_RESTART_COUNT": str(start.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": job_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": nccl_errors,
    }
    return [
        {**common, "RANK": str(rank), "LOCAL_RANK": str(place), "ROLE_RANK": str(rank)}
        for place, rank in enumerate(range(hosts.first_rank, hosts.first_rank + int(local_size)))
    ]


def rank_variables(
    num_ranks: int, *, rendezvous: Rendezvous, run_id: str, restarts: int, max_restarts: int, nccl_errors: str
) -> list[dict[str, str]]:
    """Return the variables that torchrun sets for each rank of one node.

    Args:
        num_ranks: The number of ranks.
        rendezvous: Where torch's own backends meet.
        run_id: The unique name of the job.
        restarts: How often the ranks were restarted before.
        max_restarts: How often they may be restarted.
        nccl_errors: TORCH_NCCL_ASYNC_ERROR_HANDLING as the user has set it, or "1".
    """
    size = str(num_ranks)
    common = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": size,
        **master_variables(*rendezvous),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": nccl_errors,
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)} for rank in range(num_ranks)]

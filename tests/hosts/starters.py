"""Commands that start ranks on the hosts of a bed without phalanx."""

from __future__ import annotations

import sys

from tests.hosts.bed import Host

_TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def torchrun_static(host: Host, num_hosts: int, num_ranks: int) -> list[str]:
    """Return torchrun with MASTER_ADDR, MASTER_PORT and the number of the host."""
    where = ["--node-rank", str(host.number), "--master-addr", "host0", "--master-port", "29500"]
    return [*_TORCHRUN, "--nnodes", str(num_hosts), "--nproc-per-node", str(num_ranks), *where]


def torchrun_c10d(host: Host, num_hosts: int, num_ranks: int) -> list[str]:
    """Return torchrun with the rendezvous that torch recommends."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "host0:29500", "--rdzv-id", "tests"]
    return [*_TORCHRUN, "--nnodes", str(num_hosts), "--nproc-per-node", str(num_ranks), *where]

"""How the ranks of each contender are started on the hosts of a bed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx_tools.bench.mpi_environments import mpi_environment
from phalanx_tools.bench.starters import WORKER_MPI, CommandStarter
from phalanx_tools.bench.teams import Team
from phalanx_tools.hosts.bed import Bed
from phalanx_tools.hosts.host import enter_command

# han is the part of OpenMPI that goes by host. It is on as shipped, and often slower than OpenMPI without it.
CONTENDERS = ("phalanx", "phalanx_torch", "gloo", "openmpi", "openmpi_no_han", "mpich")
_WORKER = str(Path(__file__).with_name("worker.py"))
_FIRST_PORT = 29600
# mpirun and mpiexec reach other hosts by commands that enter them, so they must see the inits of all hosts.
_OF_LAUNCHERS = "net,uts"


def start_team(contender: str, bed: Bed, ranks_per_host: int, folder: Path) -> Team:
    """Return a team on all hosts of a bed, which begins when it is entered.

    Args:
        contender: One of CONTENDERS.
        bed: The hosts.
        ranks_per_host: Ranks on each.
        folder: Of the run; all hosts see it.

    Raises:
        OSError: It can't be made.
    """
    if contender.startswith("openmpi"):
        commands = [_openmpi(bed, ranks_per_host, write_agent(bed, folder), has_han=contender == "openmpi")]
    elif contender == "mpich":
        commands = [_mpich(bed, ranks_per_host, write_agent(bed, folder))]
    else:
        commands = _launchers(contender, bed, ranks_per_host)
    address = str(folder / f"{contender}.socket")
    return Team(contender, len(bed) * ranks_per_host, CommandStarter(commands), address)


def _launchers(contender: str, bed: Bed, ranks_per_host: int) -> list[list[str]]:
    """Start Gloo by torchrun, as its users do, and phalanx by its own launcher."""
    launcher = ["torch.distributed.run"] if contender == "gloo" else ["phalanx", "run"]
    port = _FIRST_PORT + CONTENDERS.index(contender)
    where = ["--nnodes", str(len(bed)), "--nproc-per-node", str(ranks_per_host)]
    where += ["--master-addr", bed[0].name, "--master-port", str(port)]
    return [
        host.command(sys.executable, "-m", *launcher, *where, "--node-rank", str(host.number), _WORKER, contender)
        for host in bed
    ]


def _openmpi(bed: Bed, ranks_per_host: int, agent: Path, *, has_han: bool) -> list[str]:
    folder = mpi_environment("openmpi")
    # Several ranks on one core: without mpi_yield_when_idle, each waits in its core's way.
    settings = ["pml", "ob1", "btl", "self,sm,tcp", "btl_tcp_if_include", "eth0", "mpi_yield_when_idle", "1"]
    settings += [] if has_han else ["coll", "^han"]
    options = [word for pair in zip(settings[::2], settings[1::2], strict=True) for word in ("--mca", *pair)]
    options += ["--bind-to", "none"]
    return openmpi_command(folder, bed, ranks_per_host, agent, *options, str(folder / "bin/python"), WORKER_MPI)


def openmpi_command(folder: Path, bed: Bed, ranks_per_host: int, agent: Path, *command: str) -> list[str]:
    """Return the command that starts ranks on all hosts by OpenMPI.

    Args:
        folder: The environment that has OpenMPI.
        bed: The hosts.
        ranks_per_host: Ranks on each.
        agent: What takes ssh's place: see write_agent().
        command: Further options of mpirun, and what to run on each rank.
    """
    places = ",".join(f"{host.address}:{ranks_per_host}" for host in bed)
    options = ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", "eth0"]
    options += ["--leave-session-attached"]  # a daemon of OpenMPI that detaches itself sometimes ends with its starter
    options += ["--oversubscribe", "--host", places, "-n", str(len(bed) * ranks_per_host)]
    return _on_first(bed, [str(folder / "bin/mpirun"), *options, *command])


def _mpich(bed: Bed, ranks_per_host: int, agent: Path) -> list[str]:
    folder = mpi_environment("mpich")
    options = ["-genv", "FI_PROVIDER", "tcp", "-genv", "FI_TCP_IFACE", "eth0"]
    return mpich_command(folder, bed, ranks_per_host, agent, *options, str(folder / "bin/python"), WORKER_MPI)


def mpich_command(folder: Path, bed: Bed, ranks_per_host: int, agent: Path, *command: str) -> list[str]:
    """Do the same as openmpi_command(), by MPICH."""
    places = ",".join(f"{host.address}:{ranks_per_host}" for host in bed)
    options = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "eth0"]
    options += ["-hosts", places, "-n", str(len(bed) * ranks_per_host)]
    return _on_first(bed, [str(folder / "bin/mpiexec"), *options, *command])


def _on_first(bed: Bed, command: Sequence[str]) -> list[str]:
    return bed[0].command(*command, namespaces=_OF_LAUNCHERS)


def write_agent(bed: Bed, folder: Path) -> Path:
    """Write the command that takes ssh's place: options, a host, and what to run there."""
    agent = folder / "agent.sh"
    cases = [f'  {host.address}) set -- {shlex.join(enter_command(host.init, "sh", "-c"))} "$*" ;;' for host in bed]
    agent.write_text(
        "\n".join(
            [
                "#!/bin/sh",
                'while [ "${1#-}" != "$1" ]; do shift; done',
                "host=$1; shift",
                'case "$host" in',
                *cases,
                '  *) echo "no host $host" >&2; exit 1 ;;',
                "esac",
                'exec "$@"',
                "",
            ]
        )
    )
    agent.chmod(0o700)
    return agent

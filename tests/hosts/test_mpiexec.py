"""mpiexec of OpenMPI and of MPICH starts an unchanged program on several hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx_tools.bench.hosts.starting import mpich_command, openmpi_command, write_agent
from phalanx_tools.bench.mpi_environments import has_mpi_environment, mpi_environment
from phalanx_tools.hosts.bed import Bed
from tests import leftovers
from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.jobs import ROOT

pytestmark = [needs_hosts, pytest.mark.slow]

_ORDINARY = str(Path(__file__).with_name("ordinary.py"))
_VARIABLES = {
    "MASTER_ADDR": "10.77.0.1",  # ranks that OpenMPI starts on host 0 do not see that host's /etc/hosts
    "MASTER_PORT": "29500",
    "PHALANX_JOB_TOKEN": "of the tests",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}",
    "OMP_NUM_THREADS": "1",
}


def _openmpi(folder: Path, bed: Bed, agent: Path) -> list[str]:
    options = [word for name in _VARIABLES for word in ("-x", name)]
    return openmpi_command(folder, bed, 2, agent, "--bind-to", "none", *options, sys.executable, _ORDINARY)


def _mpich(folder: Path, bed: Bed, agent: Path) -> list[str]:
    return mpich_command(folder, bed, 2, agent, "-genvlist", ",".join(_VARIABLES), sys.executable, _ORDINARY)


def _if_installed(name: str, command: Callable[[Path, Bed, Path], list[str]]) -> object:
    why = f"{name} is not installed; ./dev bench hosts installs it"
    return pytest.param(name, command, id=name, marks=pytest.mark.skipif(not has_mpi_environment(name), reason=why))


@pytest.mark.parametrize(("name", "command"), [_if_installed("openmpi", _openmpi), _if_installed("mpich", _mpich)])
def test_mpiexec_runs_an_unchanged_program_on_two_hosts(
    name: str, command: Callable[[Path, Bed, Path], list[str]], tmp_path: Path
) -> None:
    with hosts(2) as bed:
        words = command(mpi_environment(name), bed, write_agent(bed, tmp_path))
        done = subprocess.run(
            words, env=os.environ | _VARIABLES, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(r"rank (\d) of 4 is done", done.stdout)) == ["0", "1", "2", "3"], done.stdout
        for host in bed:
            assert leftovers.wait_until(lambda host=host: not host.processes(), 10), host.run("ps", "-ef")  # type: ignore[misc]

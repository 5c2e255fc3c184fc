"""Groups over hosts whose bytes travel by MPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.groups.wires.mpi import MpiWire
from phalanx.settings import wire

_HAS_MPI = importlib.util.find_spec("mpi4py") is not None and shutil.which("mpiexec") is not None
_PROGRAM = """
import sys
import torch
from mpi4py import MPI
from phalanx.groups.hosts import HostTable
from phalanx.groups.hybrid import join_over_hosts
from phalanx.groups.wires.mpi import MpiWire
from phalanx.launch.board import Seal, StoreBoard

rank = MPI.COMM_WORLD.Get_rank()
board = StoreBoard(torch.distributed.FileStore(sys.argv[1], 4), Seal("token", "job"))
table = HostTable(((0, 1), (2, 3)))
group = join_over_hosts(
    board, rank, table, name="world", timeout_s=30, ranks=range(4), make_wire=MpiWire
)
for count in (1, 100_000, 3_000_000):
    tensor = torch.full((count,), float(rank))
    group.all_reduce(tensor)
    assert (tensor == 6).all()
if rank == 0:
    group.send(torch.arange(5), 3, 9)
if rank == 3:
    got = torch.empty(5, dtype=torch.int64)
    group.recv(got, 0, 9)
    assert got.tolist() == [0, 1, 2, 3, 4]
group.barrier()
group.close()
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not _HAS_MPI, reason="there is no mpi4py, or no mpiexec")
def test_operations_and_messages_by_mpi(tmp_path: Path) -> None:
    command = ["mpiexec", "-n", "4", sys.executable, "-c", _PROGRAM, str(tmp_path / "store")]
    environment = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == ["done"] * 4, run.stderr


def test_the_wire_is_chosen_by_a_variable() -> None:
    assert wire({}) == "gloo"
    assert wire({"PHALANX_WIRE": "mpi"}) == "mpi"
    with pytest.raises(UsageError, match="give gloo or mpi"):
        wire({"PHALANX_WIRE": "ucc"})


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UsageError, match=r"pip install 'phalanx\[mpi\]'"):
        MpiWire(None, 0, 1, 1.0)  # type: ignore[arg-type]

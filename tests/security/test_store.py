"""SECURITY.md, "What another user can't do": no port is opened, and torch's store belongs to the user of the job."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.doctor import rank_programs, self_tests
from phalanx.torch_backend.untyped import dist
from tests.jobs.launching import COMMAND, LIMIT_S, phalanx_run, write_script
from tests.security.other_user import another_user, run_as_another_user

pytestmark = pytest.mark.slow

# Who listens at which port, of the ranks and all their ancestors up to the launcher.
_LISTENERS = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def ports(pids):
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    found = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = os.readlink(path)
            except OSError:
                continue
            if name in listening:
                found.setdefault(pid, []).append(listening[name])
    return found

dist.init_process_group(sys.argv[1])
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, os.getpid())
if dist.get_rank() == 0:
    zygote = os.getppid()
    print(json.dumps({
        "of_launcher": ports([zygote, parent(zygote)]),
        "of_ranks": ports(ranks),
        "master_port": os.environ["MASTER_PORT"],
        "store": os.environ["PHALANX_STORE"].rpartition(":")[2],
    }), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def _seen(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text[text.index("{") :].splitlines()[0])
    return found


@pytest.mark.parametrize("backend", ["phalanx", "gloo"])
def test_a_job_listens_nowhere_but_where_gloo_itself_does(tmp_path: Path, backend: str) -> None:
    result = phalanx_run("-n", 3, write_script(tmp_path, _LISTENERS), backend)
    assert result.returncode == 0, result.stderr
    seen = _seen(result.stdout)
    assert seen["of_launcher"] == {}
    ports = [port for some in seen["of_ranks"].values() for port in some]
    assert int(seen["master_port"]) not in ports
    assert bool(ports) == (backend == "gloo"), "Gloo's own connections between ranks are TCP"


def test_ranks_of_spawn_listen_nowhere() -> None:
    def program() -> tuple[int, str]:
        dist.init_process_group("phalanx")
        dist.barrier()
        tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
        listening = {line.split()[9] for table in tables for line in table if line.split()[3] == "0A"}
        mine = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
        dist.destroy_process_group()
        return len(mine & {f"socket:[{inode}]" for inode in listening}), os.environ["MASTER_PORT"]

    results = phalanx.spawn(program, ranks=2, timeout_s=60)
    assert [number for number, _ in results] == [0, 0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(results[0][1])))


@pytest.mark.parametrize("backend", ["phalanx", "gloo"])
def test_the_doctor_listens_nowhere_while_it_tries_torchs_backends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    try_backend, doctor, notes = rank_programs.sum_over_torch, os.getpid(), tmp_path / "notes"

    def try_and_look(*args: Any) -> float:
        value = try_backend(*args)
        tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
        listening = {f"socket:[{line.split()[9]}]" for table in tables for line in table if line.split()[3] == "0A"}
        for pid in (doctor, os.getpid()):
            held = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
            with notes.open("a") as file:
                file.write(f"{len(held & listening)}\n")
        return value

    monkeypatch.setattr(rank_programs, "sum_over_torch", try_and_look)
    assert self_tests.over_torch(backend, 2).status == "ok"
    assert notes.read_text().split() == ["0"] * 4


@pytest.mark.ranks(2)
@pytest.mark.parametrize("backend", ["phalanx", "gloo"])
def test_ranks_of_a_test_meet_in_the_same_way(rank: int, backend: str) -> None:
    dist.init_process_group(backend)
    address, port, _, path = os.environ["PHALANX_STORE"].split(":")
    assert (address, port) == ("127.0.0.1", os.environ["MASTER_PORT"])
    assert path.startswith("/proc/")
    everybody: list[int | None] = [None, None]
    dist.all_gather_object(everybody, rank)
    assert everybody == [0, 1]
    dist.destroy_process_group()


@another_user
@pytest.mark.ranks(2)
def test_another_user_can_neither_read_nor_write_torchs_store(rank: int) -> None:
    dist.init_process_group("gloo")
    path = os.environ["PHALANX_STORE"].rpartition(":")[2]
    assert os.access(path, os.R_OK | os.W_OK)
    if rank == 0:
        program = """
for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
    try:
        os.open(sys.argv[1], how)
    except PermissionError:
        print("refused")
"""
        assert run_as_another_user(program, path).split() == ["refused"] * 3
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("backend", ["gloo", "phalanx"])
def test_process_groups_can_be_made_again_and_again(rank: int, backend: str) -> None:
    for _ in range(3):
        dist.init_process_group(backend)
        everybody: list[int | None] = [None] * 3
        dist.all_gather_object(everybody, rank)
        assert everybody == [0, 1, 2]
        dist.destroy_process_group()


def test_a_program_that_names_its_own_port_meets_there(tmp_path: Path) -> None:
    program = """
    import os, socket
    import torch.distributed as dist
    import phalanx

    with phalanx.connect() as group, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(group.broadcast_object(probe.getsockname()[1], root=0))
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    print(type(store).__name__)
    dist.barrier()
    dist.destroy_process_group()
    """
    result = phalanx_run("-n", 2, write_script(tmp_path, program))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == ["TCPStore", "TCPStore", "[0]", "[1]"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_ranks_meet_where_there_is_no_network_at_all(tmp_path: Path) -> None:
    program = """
    import torch, torch.distributed as dist
    dist.init_process_group("phalanx")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(int(ones))
    """
    command = ["unshare", "--net", *COMMAND, "-n", "2", str(write_script(tmp_path, program))]
    result = subprocess.run(command, capture_output=True, timeout=LIMIT_S, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] 2", "[1] 2"]

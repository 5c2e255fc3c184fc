"""Joining from the environment that other launchers set."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

import pytest

import phalanx
import phalanx.groups.connect  # with torch: forked processes have it
from phalanx.engine import usable_cores

_PROGRAM = """
import sys, torch, phalanx
group = phalanx.connect(timeout_s=100)
tensor = torch.tensor([float(group.rank + 1)])
group.all_reduce(tensor)
second = phalanx.connect(timeout_s=100)
second.all_reduce(tensor)
print(group.rank, group.size, group.name, int(tensor), group.nonce != second.nonce)
"""
_LONGEST_S = 150
_MANAGED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK")


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in _MANAGED}, **variables}


def _run_afresh(program: str, variables: Sequence[Mapping[str, str]]) -> list[tuple[int, str, str]]:
    """Run the program as users do, once with each of these variables; return how each process ended and its output."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, env=_environment(each), **pipes) for each in variables]
    outputs = [process.communicate(timeout=_LONGEST_S) for process in processes]
    return [
        (process.returncode, out.strip(), error.strip())
        for process, (out, error) in zip(processes, outputs, strict=True)
    ]


def _run_all(variables: Sequence[Mapping[str, str]], program: str = _PROGRAM) -> list[tuple[int, str, str]]:
    """The same in processes that are forked from this one: they need not import torch, which takes a second."""
    with contextlib.ExitStack() as files:
        outputs = [[files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in variables]
        processes = [
            multiprocessing.get_context("fork").Process(target=_be_program, args=(program, _environment(each), *output))
            for each, output in zip(variables, outputs, strict=True)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_LONGEST_S)
            process.kill()
            process.join()
        codes = [process.exitcode or 0 for process in processes]
        for process in processes:
            process.close()
        return [(code, _read(out), _read(error)) for code, (out, error) in zip(codes, outputs, strict=True)]


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()


def _be_program(program: str, environment: Mapping[str, str], out: IO[str], error: IO[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    os.dup2(error.fileno(), 2)
    sys.stdout, sys.stderr = out, error
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_processes_started_as_by_torchrun_find_each_other_without_the_port() -> None:
    """Nothing listens on the port; its number only tells one job from another."""
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    results = _run_afresh(_PROGRAM, [{**job, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)])
    assert [out for _, out, _ in results] == ["0 2 world 6 True", "1 2 world 6 True"], results
    assert [code for code, _, _ in results] == [0, 0]


@pytest.mark.slow
def test_processes_started_as_by_openmpi_find_each_other() -> None:
    namespace = secrets.token_hex(8)
    results = _run_all(
        [
            {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": namespace}
            for rank in range(2)
        ]
    )
    assert [out for _, out, _ in results] == ["0 2 world 6 True", "1 2 world 6 True"], results


@pytest.mark.slow
def test_processes_started_as_by_mpich_find_each_other() -> None:
    results = _run_all([{"PMI_RANK": str(rank), "PMI_SIZE": "2"} for rank in range(2)])
    assert [out for _, out, _ in results] == ["0 2 world 6 True", "1 2 world 6 True"], results


@pytest.mark.slow
def test_a_process_that_nobody_launched_is_one_rank() -> None:
    ((code, out, error),) = _run_all([{}])
    assert (code, out) == (0, "0 1 world 1 True"), error


@pytest.mark.slow
def test_a_contradictory_environment_is_refused() -> None:
    ((code, _, error),) = _run_all([{"RANK": "2", "WORLD_SIZE": "2"}])
    assert code != 0
    assert "UsageError: the environment has RANK=2 WORLD_SIZE=2" in error


@pytest.mark.slow
def test_two_processes_with_the_same_rank_are_refused() -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    results = _run_all([job, job])
    for code, _, error in results:
        assert code != 0
        assert "UsageError: connect: 2 processes came with ranks [0, 0]; each rank must come once" in error


@pytest.mark.slow
def test_a_process_that_dies_is_named_without_any_launcher() -> None:
    """Nobody watches the ranks here: the survivor finds out by itself, signal included."""
    program = _PROGRAM + (
        "import os, signal\nif group.rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ngroup.barrier()\n"
    )
    job = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    results = _run_all([{**job, "RANK": str(rank)} for rank in range(2)], program)
    assert results[1][0] == -9
    assert "PeerDiedError" in results[0][2]
    assert "was killed by SIGKILL (signal 9)" in results[0][2]


def test_connect_works_in_this_process_too() -> None:
    group = phalanx.connect()
    assert (group.rank, group.size) == (0, 1)
    group.barrier()
    group.close()


_PINNED = """
import os, sys
import phalanx
os.sched_setaffinity(0, {int(core) for core in os.environ["CORES"].split(",")})
group = phalanx.connect(timeout_s=100)
part = group.split([0, 1])
print(group.is_crowded, part.is_crowded)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cores_of", "is_crowded"), [("each", False), ("one", True), ("all", False)])
def test_ranks_are_crowded_if_they_are_more_than_the_cores_they_were_pinned_to(cores_of: str, is_crowded: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or usable_cores() < 2:
        pytest.skip("needs two cores")
    chosen = {"each": [[cores[0]], [cores[1]]], "one": [cores[:1]] * 2, "all": [cores] * 2}[cores_of]
    job = {"PMIX_NAMESPACE": secrets.token_hex(8), "OMPI_COMM_WORLD_SIZE": "2"}
    variables = [
        {**job, "OMPI_COMM_WORLD_RANK": str(rank), "CORES": ",".join(map(str, chosen[rank]))} for rank in range(2)
    ]
    assert [out for _, out, _ in _run_all(variables, _PINNED)] == [f"{is_crowded} {is_crowded}"] * 2

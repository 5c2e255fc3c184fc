"""What ranks are given: variables, threads, a world, and backends that find each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import leftovers
from tests.jobs.launching import environment_without, lines_of, phalanx_run, started_job, write_script

pytestmark = pytest.mark.slow


def test_ranks_have_the_variables_of_torchrun(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import json, os, random, sys, torch
        import numpy
        print(json.dumps({
            "variables": dict(os.environ),
            "threads": torch.get_num_threads(),
            "numbers": [float(numpy.random.rand()), random.random()],
            "modules": "phalanx.jobs.launcher" in sys.modules,
        }))
        """,
    )
    variables = environment_without("OMP_NUM_THREADS", TORCHELASTIC_RESTART_COUNT="77")
    arguments = ["-n", 3, "--env", "A=b=c", "--env", "EMPTY=", "--threads-per-rank", 3, "--gpus", "0", "--restart", 2]
    result = phalanx_run(*arguments, script, env=variables)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads(lines_of(result.stdout, rank)[0]) for rank in range(3)]
    for rank, seen in enumerate(ranks):
        own = seen["variables"]
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ROLE_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "ROLE_WORLD_SIZE": "3",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "A": "b=c",
            "EMPTY": "",
        }
        assert {name: own.get(name) for name in expected} == expected
        assert {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(own), "those of the zygote"
        assert seen["threads"] == 3
    assert len({seen["variables"]["MASTER_PORT"] for seen in ranks}) == 1
    assert len({seen["variables"]["TORCHELASTIC_RUN_ID"] for seen in ranks}) == 1
    assert len({tuple(seen["numbers"]) for seen in ranks}) == 3, "ranks draw different numbers"


_COLLECTIVE = """
    import sys
    import torch
    import torch.distributed as dist
    import phalanx

    def check(reduce, rank, size):
        tensor = torch.full((3,), float(rank))
        reduce(tensor)
        assert tensor.tolist() == [sum(range(size))] * 3

    for backend in ("phalanx", "gloo", "phalanx"):
        dist.init_process_group(backend)
        check(dist.all_reduce, dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    for _ in range(2):
        with phalanx.connect() as group:
            check(group.all_reduce, group.rank, group.size)
    print("all is well")
"""


def test_every_backend_works_and_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    script = write_script(tmp_path, _COLLECTIVE)
    with started_job("-n", 3, script) as one, started_job("-n", 2, script) as other:
        for job, num_ranks in ((one, 3), (other, 2)):
            out, err = job.communicate(timeout=60)
            assert job.returncode == 0, err
            assert out.count("all is well") == num_ranks


def test_ranks_read_what_the_launcher_reads(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import sys; print(sys.stdin.readline(), end='')")
    result = phalanx_run("-n", 1, script, input="from the pipe\n", stdin=None)
    assert result.stdout == "[0] from the pipe\n"


def test_a_job_can_be_found_from_outside(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with started_job("-n", 2, "--name", "my job", script, "a") as launcher:
        assert launcher.stdout is not None
        pids = dict(sorted(line[1:].split("] ") for line in (launcher.stdout.readline() for _ in range(2))))
        (record,) = (
            path
            for path in Path(f"/proc/{launcher.pid}/fd").iterdir()
            if path.is_symlink() and "memfd:phalanx-job" in str(path.readlink())
        )
        # Ranks may print before the launcher has noted that they have started.
        assert leftovers.wait_until(
            lambda: '"pids": [' in record.read_text() and '"pids": []' not in record.read_text(), 20
        )
        facts = json.loads(record.read_text())
        started = facts.pop("started_unix")
        assert 1e9 < started < 1e11
        assert facts == {
            "name": "my job",
            "pid": launcher.pid,
            "command": ["python", str(script), "a"],
            "num_ranks": 2,
            "pids": [int(pids["0"]), int(pids["1"])],
            "first_rank": 0,
            "host": "",
        }


def test_a_trace_becomes_a_timeline(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, phalanx
        with phalanx.connect() as group:
            group.all_reduce(torch.ones(3))
        """,
    )
    result = phalanx_run("-n", 2, "--trace", tmp_path / "traces", script)
    assert result.returncode == 0, result.stderr
    assert f"phalanx run: timeline: {tmp_path / 'traces' / 'timeline.html'}" in result.stderr
    assert (tmp_path / "traces" / "timeline.html").stat().st_size > 1000

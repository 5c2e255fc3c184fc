"""`phalanx run --virtual-gpus`: real jobs on GPUs that the CPU plays."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.jobs.virtual_gpus import GpuOptions, describe_virtual_gpus, with_virtual_gpus
from tests.jobs.launching import environment_without, lines_of, phalanx_run, started_job, write_script

_EXAMPLE = Path(__file__).parents[2] / "examples" / "03_eight_gpus.py"
_VARIABLES = (
    "PHALANX_VIRTUAL_GPUS",
    "PHALANX_VIRTUAL_GPU",
    "PHALANX_VIRTUAL_MEMORY",
    "PHALANX_RACES",
    "PHALANX_STAND_IN",
)


@pytest.mark.slow
def test_the_example_for_eight_gpus_runs_where_there_are_none() -> None:
    job = phalanx_run("-n", 8, "--virtual-gpus", 8, _EXAMPLE)
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank)[0].split(":")[1] for rank in range(8)] == [f"{rank} of 8" for rank in range(8)]
    first, last = (float(word) for word in lines_of(job.stdout, 0)[1].removeprefix("loss ").split(" -> "))
    assert last < 0.8 * first
    assert lines_of(job.stdout, 0)[2] == "parameters equal on all 8 ranks: True"


@pytest.mark.slow
def test_ranks_and_what_they_start_see_the_gpus_that_were_asked_for(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, subprocess, sys
        import torch, torch.distributed as dist
        import phalanx

        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3 if os.environ["RANK"] == "0" else 0)
        rank = int(os.environ["LOCAL_RANK"])
        assert not torch.cuda.is_initialized()
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        tensor = torch.full((2,), rank + 1.0, device="cuda", requires_grad=True)
        (tensor * 2).sum().backward()
        dist.all_reduce(tensor.grad)
        print("gradient", tensor.grad.tolist(), phalanx.is_stand_in(dist.group.WORLD))
        print("devices", torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory)
        print("like", torch.cuda.get_device_name(), torch.cuda.get_device_capability())
        try:
            torch.empty(1 << 26, device="cuda")
        except torch.OutOfMemoryError:
            print("full")
        tensor.grad.mul_(2)  # tolist() has waited for what was before
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                tensor.grad.add_(1)
        except phalanx.RaceError:
            print("race")
        print("hidden", repr(os.environ["CUDA_VISIBLE_DEVICES"]))
        if rank == 1:
            child = "import torch; print('child', torch.cuda.device_count(), torch.cuda.get_arch_list())"
            print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout, end="")
        dist.destroy_process_group()
        """,
    )
    options = [
        "--virtual-gpus",
        3,
        "--virtual-gpu",
        "L4",
        "--virtual-memory",
        "128MiB",
        "--races",
        "raise",
        "--restart",
        1,
    ]
    job = phalanx_run("-n", 2, *options, script, env=environment_without(*_VARIABLES))
    assert job.returncode == 0, job.stderr
    like = "like NVIDIA L4 (Virtual GPU) (8, 9)"
    told = ["gradient [4.0, 4.0] True", f"devices 3 {128 << 20}", like, "full", "race", "hidden ''"]
    assert lines_of(job.stdout, 0) == told
    assert lines_of(job.stdout, 1) == [*told, "child 3 ['sm_89']"]
    announced = (
        "phalanx run: setting up 3 virtual GPUs of 128MiB, as NVIDIA L4, on the CPU; phalanx stands in for NCCL\n"
    )
    assert job.stderr.startswith(announced)
    assert job.stderr.count("virtual GPU") == 1


@pytest.mark.slow
def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import torch; print(torch.cuda.is_available(), hasattr(torch, 'virtual'))")
    job = phalanx_run("-n", 1, "--gpus", "none", script, env=environment_without(*_VARIABLES))
    assert (job.stdout, job.stderr) == ("[0] False False\n", "")


@pytest.mark.slow
def test_what_keeps_them_from_being_set_up_is_told_once_and_nothing_starts(tmp_path: Path) -> None:
    environment = environment_without(*_VARIABLES, XDG_CACHE_HOME=str(tmp_path / "cache"), CXX="/nowhere/c++")
    job = phalanx_run("-n", 4, "--virtual-gpus", 4, write_script(tmp_path, "print(1)"), env=environment)
    assert (job.returncode, job.stdout) == (2, "")
    announced, what, instead = job.stderr.splitlines()
    assert announced.startswith("phalanx run: setting up 4 virtual GPUs")
    assert what.startswith("phalanx run: virtual devices need a C++ compiler")
    assert "set CXX" in instead


@pytest.mark.slow
def test_ctrl_c_during_the_first_build_ends_the_job_and_the_compiler(tmp_path: Path) -> None:
    environment = environment_without(*_VARIABLES, XDG_CACHE_HOME=str(tmp_path / "cache"))
    script = write_script(tmp_path, "print(1)")
    with started_job("-n", 2, "--virtual-gpus", 2, script, env=environment) as launcher:
        assert launcher.stderr is not None
        lines = [launcher.stderr.readline(), launcher.stderr.readline()]
        assert lines[1].startswith("phalanx: building the virtual devices for this torch, once")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 130
        # The compiler has the same stderr: it is gone when that has ended.
        assert launcher.stderr.read() == "phalanx run: ended by SIGINT\n  exit code   130\n"


def test_options_become_variables_and_real_gpus_are_hidden() -> None:
    options = GpuOptions(num_virtual=8, model="h100", memory="1GiB", races="warn")
    assert with_virtual_gpus(options, {"A": "b", "CUDA_VISIBLE_DEVICES": "0"}, {}) == {
        "A": "b",
        "CUDA_VISIBLE_DEVICES": "",
        "PHALANX_VIRTUAL_GPUS": "8",
        "PHALANX_VIRTUAL_GPU": "h100",
        "PHALANX_VIRTUAL_MEMORY": "1GiB",
        "PHALANX_RACES": "warn",
    }


def test_without_options_the_environment_stays_as_it_is() -> None:
    for environment in ({"CUDA_VISIBLE_DEVICES": "0"}, {"PHALANX_VIRTUAL_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0"}):
        assert with_virtual_gpus(GpuOptions(), environment, {}) == environment


@pytest.mark.parametrize(
    ("options", "environment", "told"),
    [
        (GpuOptions(real="0", num_virtual=2), {}, "--gpus chooses real GPUs"),
        (GpuOptions(real="none"), {"PHALANX_VIRTUAL_GPUS": "2"}, "--gpus chooses real GPUs"),
        (GpuOptions(model="h100"), {}, "--virtual-gpu is for virtual GPUs; say how many"),
        (GpuOptions(num_virtual=2, model="h1000"), {}, "--virtual-gpu is 'h1000'; give one of plain, v100, t4, a100, "),
        (GpuOptions(num_virtual=2), {"PHALANX_VIRTUAL_GPU": "h1000"}, "PHALANX_VIRTUAL_GPU is 'h1000'; give one of"),
        (GpuOptions(memory="1GiB"), {}, "--virtual-memory is for virtual GPUs; say how many"),
        (GpuOptions(races="warn"), {}, "--races is for virtual GPUs; say how many"),
        (GpuOptions(num_virtual=2, memory="much"), {}, "--virtual-memory is 'much'; give a size with its unit"),
        (GpuOptions(num_virtual=2, memory="3B"), {}, "--virtual-memory is '3B'; give a size from"),
        (GpuOptions(num_virtual=2), {"CUDA_VISIBLE_DEVICES": "1"}, "--env CUDA_VISIBLE_DEVICES shows some"),
        (GpuOptions(), {"PHALANX_VIRTUAL_GPUS": "many"}, 'PHALANX_VIRTUAL_GPUS is "many"'),
        (GpuOptions(num_virtual=2), {"PHALANX_RACES": "loud"}, 'PHALANX_RACES is "loud"'),
        (GpuOptions(num_virtual=2), {"PHALANX_STAND_IN": "ucc"}, 'PHALANX_STAND_IN is "ucc"'),
    ],
)
def test_what_can_not_be_is_refused_before_anything_starts(
    options: GpuOptions, environment: dict[str, str], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        with_virtual_gpus(options, environment, environment)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 65, "all"])
def test_a_number_of_gpus_that_can_not_be_is_refused(number: object, tmp_path: Path) -> None:
    job = phalanx_run("-n", 1, "--virtual-gpus", number, write_script(tmp_path, ""))
    assert job.returncode == 2
    assert "'--virtual-gpus'" in job.stderr


@pytest.mark.parametrize(
    ("environment", "num_ranks", "told"),
    [
        ({}, 2, ""),
        ({"PHALANX_VIRTUAL_GPUS": "1"}, 1, "setting up 1 virtual GPU of 16GiB on the CPU; phalanx stands in for NCCL"),
        (
            {"PHALANX_VIRTUAL_GPUS": "2", "PHALANX_STAND_IN": "gloo,mpi"},
            4,
            "setting up 2 virtual GPUs of 16GiB on the CPU; phalanx stands in for Gloo and MPI",
        ),
        ({"PHALANX_VIRTUAL_GPUS": "2", "PHALANX_STAND_IN": "none"}, 4, "setting up 2 virtual GPUs of 16GiB on the CPU"),
        (
            {"PHALANX_VIRTUAL_GPUS": "2", "PHALANX_VIRTUAL_GPU": "h100", "PHALANX_STAND_IN": "none"},
            4,
            "setting up 2 virtual GPUs of 80GiB, as NVIDIA H100 80GB HBM3, on the CPU",
        ),
        (
            {"PHALANX_VIRTUAL_GPUS": "2"},
            3,
            "setting up 2 virtual GPUs of 16GiB on the CPU; phalanx stands in for NCCL; "
            "there are fewer GPUs than the 3 ranks, and NCCL allows one rank per GPU",
        ),
    ],
)
def test_it_is_told_what_ranks_take_for_gpus(environment: dict[str, str], num_ranks: int, told: str) -> None:
    assert describe_virtual_gpus(environment, num_ranks) == told

"""`phalanx run --gpus`: who gets which GPU and how much of its memory, and what ranks see of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.jobs.real_gpus import assign_gpus, choose_gpus
from phalanx.jobs.script import check_forkable
from phalanx.real_gpus.discovery import Gpu
from tests.gpus import needs_gpu
from tests.jobs.launching import environment_without, lines_of, phalanx_run, write_script
from tests.nvml import build_nvml

_ONE = [Gpu("GPU-aa01", 80 << 30)]
_ALIKE = [Gpu("GPU-aa01", 80 << 30), Gpu("GPU-aa02", 80 << 30)]
_FOUR = [Gpu(f"GPU-{number}{number}", 80 << 30) for number in range(4)]
_NCCL = "(NCCL refuses this by default; with --stand-in nccl, phalanx serves programs that ask for NCCL)"
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PHALANX_GPU_MEMORY", "PHALANX_VIRTUAL_GPUS")


@pytest.mark.parametrize(
    ("spec", "visible", "names"),
    [
        ("0", None, []),
        ("none", None, []),
        ("1", None, ["0"]),
        ("3", None, ["0", "1", "2"]),
        ("2", "3,1,0", ["3", "1"]),
        ("1", "GPU-22", ["GPU-22"]),
        ("all", "3", ["0", "1", "2", "3"]),
        ("1,", "3", ["1"]),
        ("3, 1", None, ["3", "1"]),
        ("device=1", None, ["1"]),
        ("device=2,0", None, ["2", "0"]),
        ("GPU-33,MIG-1f", None, ["GPU-33", "MIG-1f"]),
    ],
)
def test_a_number_says_how_many_and_a_list_which(spec: str, visible: str | None, names: list[str]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert choose_gpus(spec, environment, _FOUR) == names


@pytest.mark.parametrize("spec", ["", "two", "-1", "0;1", "1,1", "1,,2", ",", "device=", "device=all", "1.5"])
def test_what_names_no_gpus_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="names"):
        choose_gpus(spec, {}, _FOUR)


@pytest.mark.parametrize(
    ("spec", "environment", "found", "words"),
    [
        ("1", {}, [], "--gpus 1: this machine has no GPU; --virtual-gpus 1 gives you virtual ones"),
        ("2", {}, _ONE, "this machine has 1 GPU; use --gpus 1, which ranks can share, or --virtual-gpus 2"),
        ("2", {"CUDA_VISIBLE_DEVICES": "3"}, _FOUR, "this machine has 4 GPUs, and CUDA_VISIBLE_DEVICES=3 shows 1;"),
        (
            "1",
            {"CUDA_VISIBLE_DEVICES": ""},
            _ONE,
            "this machine has 1 GPU, and CUDA_VISIBLE_DEVICES= shows 0; --virtual",
        ),
        ("4,", {}, _FOUR, "--gpus 4,: there is no GPU 4; this machine has 4 GPUs, numbered from 0"),
        ("GPU-99", {}, _FOUR, "there is no GPU GPU-99"),
        (
            "GPU-aa0",
            {},
            _ALIKE,
            "--gpus GPU-aa0: the UUIDs of GPU-aa01 and GPU-aa02 begin with GPU-aa0; give more characters",
        ),
        ("GPU-aa01,0", {}, _ALIKE, '"GPU-aa01,0" names a GPU twice'),
        ("GPU-aa01,GPU-aa01-", {}, [Gpu("GPU-aa01-bb")], "names a GPU twice"),
    ],
)
def test_gpus_that_are_not_there_are_refused(
    spec: str, environment: dict[str, str], found: list[Gpu], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        choose_gpus(spec, environment, found)
    assert words in str(refused.value)


def test_ranks_that_outnumber_gpus_share_them_in_even_blocks() -> None:
    assigned = assign_gpus("2", None, {"A": "b", "CUDA_VISIBLE_DEVICES": "3,1,0"}, 5, _FOUR)
    assert assigned.environment == {"A": "b", "CUDA_VISIBLE_DEVICES": "3,1"}
    assert [each["CUDA_VISIBLE_DEVICES"] for each in assigned.rank_variables] == ["3", "3", "3", "1", "1"]
    assert {each["LOCAL_RANK"] for each in assigned.rank_variables} == {"0"}
    assert [each["PHALANX_LOCAL_RANK"] for each in assigned.rank_variables] == ["0", "1", "2", "3", "4"]
    assert [float(each["PHALANX_GPU_MEMORY"]) for each in assigned.rank_variables] == pytest.approx(
        [1 / 3] * 3 + [0.5] * 2
    )
    sizes = ", ".join(["26.1 GiB"] * 3 + ["39.4 GiB"] * 2)
    assert assigned.note == f"5 ranks take turns on 2 GPUs; of its memory, ranks may use: {sizes} {_NCCL}"


def test_the_note_says_who_shares_and_how_much() -> None:
    told = "8 ranks take turns on 1 GPU; each may use 9.4 GiB of its memory"
    assert assign_gpus("1", None, {}, 8, _ONE).note == f"{told} {_NCCL}"
    served = {"PHALANX_STAND_IN": "nccl"}
    assert assign_gpus("1", None, served, 8, _ONE).note == told
    assert assign_gpus("1", None, served, 8, [Gpu()]).note.endswith("each may use 0.125 of its memory")
    assert assign_gpus("1", "10GiB", served, 4, _ONE).note.endswith("each may use 9.4 GiB of its memory")
    assert assign_gpus("1", "free", served, 4, _ONE).note.endswith("so one can leave the others without")


def test_as_many_gpus_as_ranks_change_nothing_but_what_is_visible() -> None:
    for num_ranks in (1, 2):
        assigned = assign_gpus("2", None, {"A": "b"}, num_ranks, _FOUR)
        assert (assigned.environment, assigned.rank_variables, assigned.note) == (
            {"A": "b", "CUDA_VISIBLE_DEVICES": "0,1"},
            (),
            "",
        )
    limited = assign_gpus("2", "10GiB,0.5", {}, 2, _FOUR)
    assert limited.rank_variables == ({"PHALANX_GPU_MEMORY": f"{10 << 30}B"}, {"PHALANX_GPU_MEMORY": "0.500000000"})


def test_without_the_option_all_stays_as_it_is() -> None:
    assigned = assign_gpus(None, None, {"CUDA_VISIBLE_DEVICES": "1"}, 8)
    assert (assigned.environment, assigned.rank_variables, assigned.note) == ({"CUDA_VISIBLE_DEVICES": "1"}, (), "")


def test_the_variable_says_how_memory_is_shared_and_the_option_beats_it() -> None:
    environment = {"PHALANX_GPU_MEMORY": "0.1"}
    for memory, share in ((None, "0.100000000"), ("0.2", "0.200000000")):
        assigned = assign_gpus("1", memory, environment, 4, _ONE)
        assert {each["PHALANX_GPU_MEMORY"] for each in assigned.rank_variables} == {share}
    alone = assign_gpus(None, None, {"PHALANX_GPU_MEMORY": "0.1,free"}, 2)
    assert [each["PHALANX_GPU_MEMORY"] for each in alone.rank_variables] == ["0.100000000", "free"]


@pytest.mark.parametrize(
    ("spec", "memory", "num_ranks", "words"),
    [
        (None, "even", 2, "--gpu-memory shares real GPUs between ranks; say which, such as --gpus 1"),
        ("none", "even", 2, "--gpus none leaves none"),
        ("1", "0.3", 4, "--gpu-memory: the shares of 4 ranks on GPU 0 come to 1.20 of its memory"),
        ("1", "60GiB,30GiB", 2, "come to 1.12 of its memory"),
        ("1", "0.1,0.2", 4, "2 shares for 4 ranks"),
        ("1", "lots", 4, 'is "lots"; give "even", "free"'),
        ("1", "even", 200, "leave one of them nothing for tensors"),
        ("1", "100GiB", 1, "come to 1.25 of its memory"),
    ],
)
def test_memory_that_can_not_be_shared_so_is_refused(spec: str | None, memory: str, num_ranks: int, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        assign_gpus(spec, memory, {}, num_ranks, _ONE)
    assert words in str(refused.value)


@pytest.mark.parametrize(("spec", "found"), [("none", _ONE), ("0", _ONE), ("all", [])])
def test_ranks_without_a_gpu_have_no_share_of_one(spec: str, found: list[Gpu]) -> None:
    assigned = assign_gpus(spec, None, {"A": "b", "PHALANX_GPU_MEMORY": "0.5,0.2"}, 2, found)
    assert (assigned.environment.get("A"), assigned.environment.get("PHALANX_GPU_MEMORY")) == ("b", None)
    assert assigned.rank_variables == ()


def test_too_many_ranks_are_refused_in_words_of_the_user() -> None:
    for spec, environment, name in (("1", {}, "--gpus 1"), ("1", {"PHALANX_GPU_MEMORY": "even"}, "PHALANX_GPU_MEMORY")):
        with pytest.raises(UsageError) as refused:
            assign_gpus(spec, None, environment, 200, _ONE)
        assert str(refused.value).startswith(f"{name}: 200 ranks on GPU 0 leave one of them nothing for tensors")
        assert str(refused.value).endswith("Use fewer ranks, or PHALANX_GPU_MEMORY=free for no limits")


@pytest.mark.parametrize("name", ["0", "GPU-aa01"])
def test_a_gpu_for_one_process_is_not_shared(name: str, tmp_path: Path) -> None:
    exclusive = [Gpu("GPU-aa01", 80 << 30, is_exclusive=True)]
    alone = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    with pytest.raises(UsageError) as refused:
        assign_gpus(f"{name},", None, alone, 2, exclusive)
    assert str(refused.value) == (
        f"only one process may use GPU {name} at a time (compute mode EXCLUSIVE_PROCESS), so ranks can't share it; "
        "`nvidia-smi -c 0` as root changes that"
    )
    assert not assign_gpus(f"{name},", None, alone, 1, exclusive).note
    (tmp_path / "control").touch()  # NVIDIA's MPS serves all of them as one process
    assert assign_gpus(f"{name},", None, alone, 2, exclusive).note


_SHOW = """
    import json, os, torch
    names = ["CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    names += ["PHALANX_LOCAL_RANK", "PHALANX_GPU_MEMORY"]
    queued = [str(each[0]) for each in torch.cuda._queued_calls if "MemoryShare" in str(each[0])]
    print(json.dumps([{name: os.environ.get(name) for name in names}, queued, torch.cuda.is_initialized()]))
"""


@pytest.mark.slow
def test_ranks_find_their_share_before_the_program_begins(tmp_path: Path) -> None:
    build_nvml(tmp_path, 80, 80)
    variables = environment_without(*_VARIABLES, LD_LIBRARY_PATH=f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    job = phalanx_run("-n", 4, "--gpus", 1, "--gpu-memory", "0.25", write_script(tmp_path, _SHOW), env=variables)
    assert job.returncode == 0, job.stderr
    told = "4 ranks take turns on 1 GPU; each may use 19.4 GiB of its memory"
    assert job.stderr == f"phalanx run: {told} {_NCCL}\n"
    for rank in range(4):
        seen, queued, is_initialized = json.loads(lines_of(job.stdout, rank)[0])
        assert seen == {
            "CUDA_VISIBLE_DEVICES": "0",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "4",
            "PHALANX_LOCAL_RANK": str(rank),
            "PHALANX_GPU_MEMORY": "0.250000000",
            "RANK": str(rank),
        }
        assert queued == ["_GpuUse(index=0, share=MemoryShare(fraction=0.25, size_bytes=0), is_current=False)"]
        assert not is_initialized


@pytest.mark.slow
def test_ranks_with_the_same_local_rank_meet_in_every_backend(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        import phalanx
        assert os.environ["LOCAL_RANK"] == "0"
        for backend in ("phalanx", "gloo"):
            dist.init_process_group(backend)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            dist.destroy_process_group()
            print(tensor.item())
        with phalanx.connect() as group:
            print(group.rank, group.size)
        """,
    )
    job = phalanx_run("-n", 3, "--gpus", "0,", script, env=environment_without(*_VARIABLES))
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank) for rank in range(3)] == [["3.0", "3.0", f"{rank} 3"] for rank in range(3)]


@pytest.mark.slow
def test_ranks_start_without_a_gpu_though_shares_are_listed(tmp_path: Path) -> None:
    variables = environment_without(*_VARIABLES, PHALANX_GPU_MEMORY="0.5,0.2")
    job = phalanx_run("-n", 2, "--gpus", "none", write_script(tmp_path, "print('here')"), env=variables)
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank) for rank in range(2)] == [["here"]] * 2


def test_ranks_are_not_forked_from_a_process_that_has_opened_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "PHALANX_VIRTUAL_GPUS"):
        monkeypatch.delenv(name, raising=False)
    check_forkable(tmp_path)
    (tmp_path / "3").symlink_to("/dev/nvidia-uvm")
    with pytest.raises(UsageError, match="`import torch` has initialised CUDA here") as refused:
        check_forkable(tmp_path)
    assert "or give --gpus none if ranks use no GPU" in str(refused.value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_forkable(tmp_path)


@needs_gpu
@pytest.mark.slow
def test_the_launcher_refuses_when_import_torch_initialises_cuda(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    variables = environment_without(*_VARIABLES, PYTHONPATH=path)
    job = phalanx_run("-n", 2, "--gpus", 1, write_script(tmp_path, "print('here')"), env=variables)
    assert (job.returncode, job.stdout) == (2, "")
    assert "phalanx run: `import torch` has initialised CUDA here" in job.stderr


@needs_gpu
@pytest.mark.slow
def test_an_unchanged_program_runs_with_many_ranks_on_one_gpu(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("phalanx")
        tensor = torch.full((1000,), dist.get_rank() + 1.0, device="cuda")
        dist.all_reduce(tensor)
        print(tensor.device, torch.cuda.device_count(), tensor.unique().tolist())
        dist.destroy_process_group()
        """,
    )
    job = phalanx_run("-n", 4, "--gpus", 1, script, env=environment_without("PHALANX_GPU_MEMORY"))
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank) for rank in range(4)] == [["cuda:0 1 [10.0]"]] * 4
    assert job.stderr.startswith("phalanx run: 4 ranks take turns on 1 GPU; each may use ")


@needs_gpu
@pytest.mark.slow
def test_a_rank_that_wants_more_than_its_share_ends_the_job_and_the_others_learn_why(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("phalanx")
        kept = [torch.ones(1, device="cuda")]
        if os.environ["RANK"] == "1":
            kept.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))
        dist.all_reduce(kept[0])
        """,
    )
    options = ["--gpus", 1, "--gpu-memory", "2GiB"]
    job = phalanx_run("-n", 2, *options, script, env=environment_without("PHALANX_GPU_MEMORY"))
    assert job.returncode == 1
    assert "rank 1 of 2 failed: OutOfMemoryError" in job.stderr
    assert "1.41 GiB allowed" in job.stderr
    assert "freed       rank 0" in job.stderr

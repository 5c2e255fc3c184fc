"""torchrun's command line, given to `phalanx run`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.run import run
from phalanx.cli.torchrun_options import OF_TORCHRUN
from phalanx.engine import usable_cores
from phalanx.errors import UsageError
from phalanx.jobs.job import Job, choose_num_ranks
from phalanx.jobs.virtual_gpus import GpuOptions, with_virtual_gpus
from tests.jobs.launching import environment_without, lines_of, phalanx_run, write_script

_TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
_PAGE = Path(__file__).parents[2] / "docs" / "torchrun.md"
_OURS = ("PHALANX_VIRTUAL_GPUS", "PHALANX_STAND_IN", "CUDA_VISIBLE_DEVICES")
_SHOW = """
    import os
    print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS")), flush=True)
    """


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "4", "--nproc-per-node", "8"], "-n and --nproc-per-node mean the same, and you gave 4 and 8"),
        (["-n", "4", "--nproc_per_node=8"], "you gave 4 and 8; give it once"),
        (["-n", "2", "--restart", "1", "--max_restarts", "2"], "--restart and --max-restarts mean the same"),
        (["-n", "2", "--module", "--no-python"], "either a module (--module) or an executable (--no-python)"),
        (["--nproc-per-node", "many"], "'many' is not a number of ranks; give a number, gpu, cpu or auto"),
        (["--gpus", "none", "-n", "gpu"], "ranks see no GPU here; give a number, or --virtual-gpus 8"),
        (["-n", "2", "--nnodes", "2"], "--nnodes 2 needs --rdzv-endpoint HOST:PORT, the same on all hosts"),
        (["-n", "2", "--nnodes", "1:4"], "phalanx run starts when all hosts are there, so give one number"),
        (["-n", "2", "--nnodes", "none"], "'none' is not a number of hosts"),
        (["-n", "2", "--node_rank", "1"], "--node-rank 1: there is only host 0; give --nnodes HOSTS"),
        (["-n", "2", "--nnodes=2", "--node-rank=2", "--rdzv-endpoint=a:1"], "with --nnodes 2, give 0 to 1"),
        (["-n", "2", "--nnodes=2", "--rdzv-endpoint=a", "--rdzv-backend=static"], "static needs --node-rank N"),
        (["-n", "2", "--nnodes=2", "--rdzv-endpoint=a:b"], '"a:b" is no place to meet; give HOST:PORT'),
        (["-n", "2", "--nnodes=2", "--rdzv-endpoint=a", "--token-file=none"], "none: the token can't be read"),
        (["-n", "2", "--nnodes=2", "--rdzv-endpoint=a", "--token-file=train.py"], "other users can read or change"),
        (["-n", "2", "--rdzv-endpoint=host:1"], "ranks of one machine meet without an address or a port"),
        (["-n", "2", "--master_port", "29501"], "leave this option out"),
        (["-n", "2", "-t", "3"], "--tee 3: --log-dir DIR saves the output of every rank"),
        (["-n", "2", "--shutdown-timeout", "3"], "give --grace SECONDS instead"),
        (
            ["-n", "2", "--local_ranks_filter", "0"],
            "--local-ranks-filter 0: every line begins with its rank, such as [3],",
        ),
        (["-n", "2", "--duplicate-stdout-filters=a"], "filter the output with grep"),
        (["-n", "2", "--duplicate-stderr-filters", "a"], "filter the output with grep"),
        (["-n", "2", "--run-path"], "--run-path: a script always runs in the interpreter that is already there"),
        (["-n", "2", "--virtual-local-rank"], "each rank sees its GPU as cuda:0 and has LOCAL_RANK 0"),
        (["-n", "2", "--logs-specs", "mine"], "phalanx run loads no extensions of torchrun"),
        (["-n", "2", "--event-log-handler", "null"], "phalanx run loads no extensions of torchrun"),
        (["-n", "2", "--numa-binding", "node"], "--numa-binding node: phalanx run does not bind ranks to cores"),
        (["-n", "2", "--signals-to-handle", "SIGUSR1"], "phalanx run passes on SIGINT, SIGTERM and SIGHUP"),
        (["-n", "2", "--stand-in", "ucc"], "'ucc' is not one of 'nccl', 'gloo', 'mpi'"),
        (["-n", "2", "--no-python"], "no command train.py is in PATH; for the file in this folder, give ./train.py"),
    ],
)
def test_what_contradicts_itself_or_needs_several_hosts_is_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('it was started')")
    result = CliRunner().invoke(run, [*arguments, "train.py"])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert "it was started" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [["-n", "4", "-n", "2"], ["-n4", "-n", "2"], ["--nproc-per-node=4", "--nproc_per_node", "2"]],
)
def test_of_an_option_that_is_given_twice_the_last_one_counts(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    def note(job: Job) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr("phalanx.jobs.launcher.run_job", note)
    script = write_script(tmp_path, "")
    result = CliRunner().invoke(run, [*arguments, "--restart", "1", "--restart", "3", str(script)])
    assert result.exit_code == 0, result.output
    assert (jobs[0].num_ranks, jobs[0].max_restarts) == (2, 3)


@pytest.mark.parametrize(
    ("asked", "gpus", "environment", "expected"),
    [
        (3, None, {}, (3, "")),
        (3, None, {"PHALANX_VIRTUAL_GPUS": "8"}, (3, "")),
        (None, None, {"PHALANX_VIRTUAL_GPUS": "8"}, (8, "starting 8 ranks, one for each virtual GPU")),
        ("gpu", None, {"PHALANX_VIRTUAL_GPUS": "1"}, (1, "starting 1 rank, one for each virtual GPU")),
        ("cpu", None, {"PHALANX_VIRTUAL_GPUS": "8"}, (usable_cores(), "one for each core")),
        ("auto", "none", {}, (usable_cores(), "one for each core")),
        (None, "none", {}, (min(4, usable_cores()), "as no GPU is visible: one for each core, up to 4")),
        (None, None, {"CUDA_VISIBLE_DEVICES": ""}, (min(4, usable_cores()), "as no GPU is visible")),
    ],
)
def test_the_number_of_ranks_is_chosen_and_explained(
    asked: int | str | None, gpus: str | None, environment: dict[str, str], expected: tuple[int, str]
) -> None:
    num_ranks, reason = choose_num_ranks(asked, gpus, environment)
    assert num_ranks == expected[0]
    assert expected[1] in reason
    assert bool(reason) is not isinstance(asked, int)


def test_stand_ins_are_those_given_and_nccl_with_virtual_gpus() -> None:
    before = {"PHALANX_STAND_IN": "mpi"}
    assert with_virtual_gpus(GpuOptions(), before, {}) == before
    for options, expected in (
        (GpuOptions(stood_in_for=("gloo",)), "gloo"),
        (GpuOptions(stood_in_for=("mpi", "gloo", "gloo")), "gloo,mpi"),
        (GpuOptions(num_virtual=2, stood_in_for=("gloo",)), "gloo,nccl"),
    ):
        assert with_virtual_gpus(options, before, {})["PHALANX_STAND_IN"] == expected


@pytest.mark.parametrize(
    ("environment", "set_by_user", "words"),
    [
        ({"PHALANX_STAND_IN": "mpi"}, {"PHALANX_STAND_IN": "mpi"}, "--stand-in and --env PHALANX_STAND_IN"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, {}, "TORCH_DEVICE_BACKEND_AUTOLOAD=0 prevents that"),
    ],
)
def test_a_stand_in_that_would_have_no_effect_is_refused(
    environment: dict[str, str], set_by_user: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        with_virtual_gpus(GpuOptions(stood_in_for=("gloo",)), environment, set_by_user)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--standalone", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "3"],
        ["--standalone", "--nnodes=1:1", "--node_rank=0", "--nproc_per_node=2", "--max_restarts=3"],
    ],
)
def test_a_command_line_of_torchrun_works(words: list[str], tmp_path: Path) -> None:
    job = phalanx_run(*words, write_script(tmp_path, _SHOW))
    assert (job.returncode, job.stderr) == (0, "")
    assert sorted(job.stdout.splitlines()) == ["[0] 0 2 3", "[1] 1 2 3"]


@pytest.mark.slow
def test_module_is_understood(tmp_path: Path) -> None:
    write_script(tmp_path, _SHOW, "shown.py")
    job = phalanx_run("--nproc-per-node", 1, "--module", "shown", cwd=tmp_path)
    assert (job.returncode, job.stdout) == (0, "[0] 0 1 0\n"), job.stderr


@pytest.mark.slow
def test_virtual_gpus_alone_say_how_many_ranks_there_are(tmp_path: Path) -> None:
    job = phalanx_run("--virtual_gpus", 3, write_script(tmp_path, _SHOW), env=environment_without(*_OURS))
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank) for rank in range(3)] == [[f"{rank} 3 0"] for rank in range(3)]
    assert job.stderr.startswith(
        "phalanx run: starting 3 ranks, one for each virtual GPU (-n sets another number)\n"
        "phalanx run: setting up 3 virtual GPUs"
    )


@pytest.mark.slow
def test_an_executable_runs_as_ranks_with_its_own_streams_and_exit_code(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """\
        #!/bin/sh
        echo "$RANK of $WORLD_SIZE: $*"
        yes | head -n 1 # ends only if SIGPIPE ends yes
        ls -l /proc/self/fd | grep -c -e memfd -e socket
        test "$RANK" != 1 || exit 7
        """,
        "train.sh",
    )
    script.chmod(0o755)
    job = phalanx_run("-n", 2, "--no-python", script, "--rate", "a b", "--grace", 1)
    assert job.returncode == 7, job.stderr
    assert lines_of(job.stdout, 1) == ["1 of 2: --rate a b --grace 1", "y", "0"]
    assert "rank 1 of 2 ended with exit code 7" in job.stderr


@pytest.mark.slow
def test_a_python_that_runs_as_an_executable_finds_its_peers(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        print(tensor.item())
        dist.destroy_process_group()
        """,
    )
    job = phalanx_run("-n", 2, "--no-python", sys.executable, script)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] 2.0", "[1] 2.0"]


@pytest.mark.slow
def test_what_the_kernel_can_not_execute_fails_with_its_reason(tmp_path: Path) -> None:
    script = write_script(tmp_path, "\0 no program", "broken")
    script.chmod(0o755)
    job = phalanx_run("-n", 1, "--no-python", script)
    assert job.returncode == 1
    assert "Exec format error" in job.stderr


@pytest.mark.slow
def test_phalanx_stands_in_for_the_backends_that_were_asked_for(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import phalanx, torch.distributed as dist
        for backend in ("gloo", "mpi"):
            dist.init_process_group(backend)
            print(backend, phalanx.is_stand_in(dist.group.WORLD))
            dist.destroy_process_group()
        """,
    )
    options = ["--stand-in", "gloo", "--stand_in=mpi"]
    job = phalanx_run("-n", 2, *options, script, env=environment_without(*_OURS))
    assert job.returncode == 0, job.stderr
    assert [lines_of(job.stdout, rank) for rank in range(2)] == [["gloo True", "mpi True"]] * 2


@pytest.mark.slow
def test_the_page_names_every_option_of_torchrun() -> None:
    shown = subprocess.run([*_TORCHRUN, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    headings = [line for line in shown.splitlines() if line.startswith("  -")]
    options = {name for line in headings for name in re.findall(r"--[a-z-]+(?![a-z_-])", line)}
    text = _PAGE.read_text()
    assert len(options) > 20
    assert sorted(option for option in options if f"`{option}`" not in text) == []


def test_the_page_says_refused_of_all_options_that_are_refused_and_of_no_others() -> None:
    rows = [line.split("|")[1:3] for line in _PAGE.read_text().splitlines() if line.startswith("| `-")]
    said = {name: place.strip() for names, place in rows for name in re.findall(r"`(-[a-z-]+)`", names)}
    refused = {name for option in OF_TORCHRUN for name in option.names}
    assert {name for name, place in said.items() if place.startswith(("refused", "only"))} == refused
    assert [name for name, place in said.items() if "unknown" in place] == []

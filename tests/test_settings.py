from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.settings import (
    DEFAULT_GRACE_S,
    DEFAULT_TIMEOUT_S,
    AssignedRank,
    Settings,
    copy_environment,
    environment_without_set_up,
    full_trace,
    hides_gpus,
    is_on_one_host,
    master_address,
    races,
    read_placement,
    read_settings,
    record_folder,
    slurm_master,
    stood_in_for,
    torch_threads,
    virtual_gpu,
    virtual_gpus,
    virtual_memory,
    wants_set_up,
)


def test_defaults_hold_in_an_empty_environment() -> None:
    assert read_settings({}) == Settings(DEFAULT_TIMEOUT_S, DEFAULT_GRACE_S)


def test_the_environment_beats_the_defaults() -> None:
    assert read_settings({"PHALANX_TIMEOUT_S": "2.5", "PHALANX_GRACE_S": "3"}) == Settings(2.5, 3.0)


@pytest.mark.parametrize("name", ["PHALANX_TIMEOUT_S", "PHALANX_GRACE_S"])
@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan"])
def test_a_bad_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UsageError) as failure:
        read_settings({name: text})
    assert str(failure.value) == f'{name} is "{text}"; give a positive number of seconds'


def test_a_copy_of_the_environment_takes_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_TEST_A", "1")
    copied = copy_environment(PHALANX_TEST_B="2")
    assert (copied["PHALANX_TEST_A"], copied["PHALANX_TEST_B"]) == ("1", "2")


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("0", 5), ("many", 5), ("", 5)])
def test_omp_num_threads_counts_when_it_is_a_number(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert torch_threads(5) == expected


def test_without_a_launcher_there_is_no_placement() -> None:
    assert read_placement({}) is None
    assert read_placement({"RANK": "0"}) is None


def test_torchrun_places_by_rank_and_world_size() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    placement = read_placement(environment)
    assert placement == AssignedRank(1, 3, "torchrun:host:29500:::3")
    restarted = read_placement({**environment, "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert restarted is not None
    assert restarted.meeting == "torchrun:host:29500:x:1:3"
    assert restarted.marks == frozenset()


def test_the_ranks_of_one_agent_of_torchrun_know_what_its_other_processes_have() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    placement = read_placement(environment)
    assert placement is not None
    assert placement.marks == {"RANK=1", "WORLD_SIZE=3", "TORCHELASTIC_RUN_ID=x"}
    agents = read_placement({**environment, "GROUP_WORLD_SIZE": "2"})
    assert agents is not None
    assert agents.marks == frozenset(), "there is no launcher that all ranks have in common"


def test_programs_that_ranks_of_phalanx_have_started_know_their_run_by_its_store() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    placement = read_placement({**environment, "PHALANX_STORE": "127.0.0.1:1:a name:a path"})
    assert placement == AssignedRank(1, 3, "torchrun:::x::127.0.0.1:1:a name:a path:3")


def test_openmpi_places_by_namespace() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    marks = frozenset({"PMIX_NAMESPACE=job7", "OMPI_COMM_WORLD_RANK=0"})
    assert read_placement({**environment, "PMIX_NAMESPACE": "job7"}) == AssignedRank(0, 2, "ompi:job7:2", marks)
    assert read_placement(environment, parent=12) == AssignedRank(0, 2, "ompi:12:2")


def test_mpich_places_by_the_parent_process() -> None:
    assert read_placement({"PMI_RANK": "4", "PMI_SIZE": "5"}, parent=99) == AssignedRank(4, 5, "pmi:99:5")


_STEP = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "4", "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[01-03,7]",
}  # fmt: skip


def test_ranks_of_srun_meet_at_the_first_node() -> None:
    assert slurm_master(_STEP) == {"MASTER_ADDR": "node01", "MASTER_PORT": "24711"}
    assert master_address(_STEP) == "node01:24711"
    assert master_address({**_STEP, "SLURM_STEP_ID": "1"}) == "node01:24808"
    assert master_address({**_STEP, "MASTER_ADDR": "other", "MASTER_PORT": "1"}) == "other:1"
    assert is_on_one_host(_STEP) is False
    assert is_on_one_host({**_STEP, "SLURM_STEP_NUM_NODES": "1"}) is True
    assert slurm_master({**_STEP, "RANK": "0"}) == {}  # a launcher that srun has started has set it


def test_an_error_about_the_meeting_place_says_what_is_not_set() -> None:
    step = {name: value for name, value in _STEP.items() if name != "SLURM_STEP_NODELIST"}
    with pytest.raises(UsageError, match="not set: MASTER_ADDR and MASTER_PORT, nor does Slurm say it in SLURM_STEP_N"):
        master_address(step)
    with pytest.raises(UsageError, match="not set: MASTER_PORT\n"):
        master_address({"MASTER_ADDR": "node0"})


def test_placement_from_srun_needs_a_step_with_several_tasks() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert read_placement(batch) is None
    step = {**batch, "SLURM_PROCID": "3", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    assert read_placement(step) == AssignedRank(3, 4, "slurm:7.1:4")
    assert read_placement({**step, "PMIX_RANK": "3"}) == AssignedRank(3, 4, "slurm:7.1:4")
    assert read_placement({**step, "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "zero", "WORLD_SIZE": "2"},
        {"PMI_RANK": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "0"},
    ],
)
def test_a_contradictory_placement_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="the rank must be at least 0 and less than the size"):
        read_placement(environment, parent=1)


def test_the_folder_of_flight_records_can_be_chosen() -> None:
    assert record_folder({"PHALANX_RECORD_DIR": "/elsewhere"}) == Path("/elsewhere")
    assert record_folder({}) is None
    assert record_folder({"PHALANX_RECORD_DIR": ""}) is None


@pytest.mark.parametrize(("text", "expected"), [("8", 8), (" 64 ", 64), ("0", 0), ("", 0)])
def test_virtual_gpus_are_a_number(text: str, expected: int) -> None:
    assert virtual_gpus({"PHALANX_VIRTUAL_GPUS": text}) == expected
    assert virtual_gpus({}) == 0


@pytest.mark.parametrize("text", ["many", "-1", "65", "2.0", "²"])
def test_a_bad_number_of_virtual_gpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as failure:
        virtual_gpus({"PHALANX_VIRTUAL_GPUS": text})
    assert str(failure.value) == f'PHALANX_VIRTUAL_GPUS is "{text}"; give a whole number up to 64, or 0 for none'


def test_the_name_of_a_model_is_no_number_of_virtual_gpus() -> None:
    with pytest.raises(UsageError, match="; PHALANX_VIRTUAL_GPU says what they claim to be"):
        virtual_gpus({"PHALANX_VIRTUAL_GPUS": "h100"})
    with pytest.raises(UsageError, match="; the number of GPUs is another setting, PHALANX_VIRTUAL_GPUS"):
        virtual_gpu({"PHALANX_VIRTUAL_GPU": "8"})


def test_a_virtual_gpu_is_a_plain_one_unless_told_otherwise() -> None:
    assert virtual_gpu({}).key == virtual_gpu({"PHALANX_VIRTUAL_GPU": " "}).key == "plain"
    assert virtual_gpu({"PHALANX_VIRTUAL_GPU": " H100 "}).key == "h100"
    with pytest.raises(UsageError, match="PHALANX_VIRTUAL_GPU is 'h1000'; give one of plain, v100, t4, a100, "):
        virtual_gpu({"PHALANX_VIRTUAL_GPU": "h1000"})


def test_virtual_memory_is_that_of_the_model_unless_told_otherwise() -> None:
    plain, h100 = virtual_gpu({}), virtual_gpu({"PHALANX_VIRTUAL_GPU": "h100"})
    assert virtual_memory(plain, {}) == virtual_memory(plain, {"PHALANX_VIRTUAL_MEMORY": ""}) == "16GiB"
    assert virtual_memory(h100, {}) == "80GiB"
    assert virtual_memory(h100, {"PHALANX_VIRTUAL_MEMORY": "2GiB"}) == "2GiB"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"PHALANX_VIRTUAL_GPUS": "0"}, False),
        ({"PHALANX_VIRTUAL_GPUS": "2"}, True),
        ({"PHALANX_STAND_IN": "gloo"}, True),
        ({"PHALANX_STAND_IN": "gloo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, False),
        ({"PHALANX_VIRTUAL_GPUS": "2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, True),
    ],
)
def test_a_forked_rank_sets_up_what_import_torch_would(environment: dict[str, str], expected: bool) -> None:
    assert wants_set_up(environment) == expected


def test_variables_for_set_up_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_VIRTUAL_GPUS", "2")
    monkeypatch.setenv("PHALANX_STAND_IN", "gloo")
    monkeypatch.setenv("PHALANX_RACES", "warn")
    rest = environment_without_set_up()
    assert "PHALANX_VIRTUAL_GPUS" not in rest
    assert "PHALANX_STAND_IN" not in rest
    assert rest["PHALANX_RACES"] == "warn"


def test_races_are_off_unless_told_otherwise() -> None:
    assert races({}) == "off"
    assert races({"PHALANX_RACES": "raise"}) == "raise"
    with pytest.raises(UsageError, match='PHALANX_RACES is "on"; give one of off, warn, raise'):
        races({"PHALANX_RACES": "on"})


def test_nccl_is_stood_in_for_where_there_are_virtual_gpus() -> None:
    gpus = {"PHALANX_VIRTUAL_GPUS": "2"}
    assert stood_in_for({}) == ()
    assert stood_in_for(gpus) == ("nccl",)
    assert stood_in_for({**gpus, "PHALANX_STAND_IN": "none"}) == ()
    assert stood_in_for({"PHALANX_STAND_IN": "mpi, gloo,mpi"}) == ("gloo", "mpi")
    with pytest.raises(
        UsageError, match='PHALANX_STAND_IN is "nccl,ucc"; give some of nccl, gloo, mpi, separated by commas'
    ):
        stood_in_for({"PHALANX_STAND_IN": "nccl,ucc"})


@pytest.mark.parametrize(("text", "is_hiding"), [("", True), ("-1", True), ("0,1", False), (None, False)])
def test_real_gpus_are_hidden_by_naming_none(
    monkeypatch: pytest.MonkeyPatch, text: str | None, is_hiding: bool
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert hides_gpus() is is_hiding


@pytest.mark.parametrize(("text", "is_full"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_whole_tracebacks_are_shown_on_request(text: str | None, is_full: bool) -> None:
    assert full_trace({} if text is None else {"PHALANX_FULL_TRACE": text}) is is_full

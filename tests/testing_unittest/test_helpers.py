from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.testing.unittest import (
    DistributedTestBase,
    SaveForwardInputsModel,
    create_device,
    create_tcp_store,
    get_timeout,
    init_multigpu_helper,
    retrieve_result_from_completion_queue,
    run_subtests,
    simple_sparse_reduce_tests,
    sm_is_or_higher_than,
    tp_transports,
    verify_ddp_error_logged,
)
from phalanx.testing.unittest.timeouts import TIMEOUT_DEFAULT
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import run


class TestGroupByDevice(DistributedTestBase):
    @property
    def world_size(self) -> int:
        return 2

    def test_a_group_for_cpus_is_gloo(self) -> None:
        group = self.create_pg("cpu")
        assert group is dist.group.WORLD
        assert dist.get_backend() == "gloo"
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2

    def test_backends_follow_from_devices(self) -> None:
        devices = {"cpu": "gloo", "cuda:0": "nccl", "hpu": "hccl", "xpu": "xccl"}
        assert {device: self.backend(device) for device in devices} == devices
        assert self.rank_to_device("cpu") == {0: [0], 1: [0]}

    def test_subtests_are_all_combinations(self) -> None:
        self.create_pg("cpu")
        seen: list[tuple[int, str, int]] = []
        run_subtests(self, {"a": [1, 2], "b": ["x", "y"]}, lambda c, a, b: seen.append((a, b, c)), 7)
        assert seen == [(1, "x", 7), (1, "y", 7), (2, "x", 7), (2, "y", 7)]


def test_a_failing_subtest_fails_the_test() -> None:
    class Case(DistributedTestBase):
        @property
        def world_size(self) -> int:
            return 2

        def test_subtests(self) -> None:
            self.create_pg("cpu")
            run_subtests(self, {"a": [1, 2]}, self._check)

        def _check(self, a: int) -> None:
            assert a == 1, "two is too much"

    assert "two is too much" in run(Case).errors["test_subtests"]


def test_the_size_of_the_world_is_in_the_environment_during_a_test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Case(DistributedTestBase):
        @property
        def world_size(self) -> int:
            return 2

        def test_it_is_there(self) -> None:
            assert os.environ["WORLD_SIZE"] == "2"

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert run(Case).errors == {}
    assert "WORLD_SIZE" not in os.environ


def test_sparse_cases_add_up() -> None:
    for num_inputs in (1, 2):
        of_ranks = [simple_sparse_reduce_tests(rank, 3, num_inputs) for rank in range(3)]
        for case in zip(*of_ranks, strict=True):
            inputs = [tensor for given, _ in case for tensor in given]
            assert len(inputs) == 3 * num_inputs
            total = sum(tensor.to_dense() for tensor in inputs)
            for _, expected in case:
                assert len(expected) == num_inputs
                assert all(torch.equal(each.to_dense(), total) for each in expected)


def test_inputs_are_saved_and_cast() -> None:
    inputs: dict[nn.Module, torch.Tensor] = {}
    model = SaveForwardInputsModel(inputs, cast_forward_inputs=True)
    given = torch.zeros(2, 100, dtype=torch.float64)
    assert model(given).dtype == torch.float32
    assert inputs[model] is given
    assert inputs[model.c1] is given
    assert inputs[model.c2].dtype == torch.float32


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.testing.unittest.hardware.device_counts", lambda: [4])
    assert init_multigpu_helper(2, "nccl") == {0: [0], 1: [1]}
    assert init_multigpu_helper(5, "nccl") == {rank: [] for rank in range(5)}


def test_times_are_those_of_torch() -> None:
    assert get_timeout("module.Class.test_ddp_uneven_inputs") == 400
    assert get_timeout("module.Class.test_DistributedDataParallel") == 500
    assert get_timeout("module.Class.test_other") == TIMEOUT_DEFAULT


@pytest.mark.ranks(1)
def test_stores_and_devices_can_be_made() -> None:
    store = create_tcp_store(timeout=timedelta(seconds=7))
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert store.timeout == timedelta(seconds=7)
    assert create_device() is not None
    assert create_device(interface="lo") is not None


def test_other_devices_have_every_capability() -> None:
    assert sm_is_or_higher_than(torch.device("cpu"), 9, 0)
    assert tp_transports() in (None, ["shm", "uv"])


class _Logged:
    def __init__(self, **data: Any) -> None:
        self._data = data

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self._data


def test_ddps_logged_error_is_found() -> None:
    model = _Logged(iteration=1, has_error=True, error="it broke somewhere")
    verify_ddp_error_logged(model, "it broke\nException raised from file.cpp")
    with pytest.raises(AssertionError, match="another error"):
        verify_ddp_error_logged(model, "it burst")
    with pytest.raises(AssertionError, match="lacks has_error, error"):
        verify_ddp_error_logged(_Logged(iteration=1), "it broke")


@pytest.mark.slow
def test_a_result_is_had_from_a_queue_unless_the_process_is_gone_or_late() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=queue.put, args=("result",))
    process.start()
    assert retrieve_result_from_completion_queue(process, queue, 10) == "result"
    process.join()
    error = retrieve_result_from_completion_queue(process, queue, 10)
    assert isinstance(error, RuntimeError)
    assert str(error) == "Exited with 0"
    sleeper = context.Process(target=time.sleep, args=(60,), daemon=True)
    sleeper.start()
    assert "Process timed out after" in str(retrieve_result_from_completion_queue(sleeper, queue, 1))
    sleeper.kill()
    sleeper.join()
    queue.close()
    queue.join_thread()
    process.close()
    sleeper.close()

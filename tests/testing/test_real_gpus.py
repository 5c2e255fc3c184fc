"""Tests with device="cuda": skipped without a GPU, and with one their ranks share it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from phalanx.errors import UsageError
from phalanx.real_gpus.memory_shares import MemoryShare
from phalanx.settings import cache_folder
from phalanx.testing.real_gpus import RealGpus, check_gpus, gpu_of, take_gpu
from tests.gpus import NUM_GPUS, needs_gpu
from tests.testing.inner_runs import InnerRuns

_ONE = RealGpus((80 << 30,))
_TWO = RealGpus((80 << 30, 80 << 30))

_CACHE = cache_folder().parent


@pytest.mark.skipif(NUM_GPUS > 0, reason="for a machine without a GPU, or a torch without CUDA")
def test_without_a_gpu_a_test_is_skipped_and_told_of_virtual_ones(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks([1, 8], device="cuda", kind=["process", "pool", "thread"])
        def test_on_gpu(device): note("ran")

        @pytest.mark.ranks(2, backend="nccl")
        def test_nccl(device): note("ran")
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=7)
    result.stdout.fnmatch_lines(['SKIPPED*device="cuda" needs one; gpus="virtual" needs none'])
    assert inner.notes() == []


@pytest.mark.slow
def test_virtual_gpus_take_the_place_of_real_ones_whatever_torch_is_built_with(
    inner: InnerRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_VIRTUAL_GPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # virtual ones are refused beside real ones
    monkeypatch.setenv("XDG_CACHE_HOME", str(_CACHE))  # else the library would be built anew
    inner.pytester.makeconftest('import torch; torch.version.cuda = "13.0"')
    result = inner.run_apart(
        """
        @pytest.mark.ranks(4, device="cuda", kind=["process", "pool", "thread"])
        def test_on_gpu(process_group, device, rank):
            assert torch.cuda.current_device() == device.index
            tensor = torch.ones(4, device=device)
            dist.all_reduce(tensor)
            note(device, tensor[0].item())
        """
    )
    result.assert_outcomes(passed=3)
    assert inner.notes() == ["cuda:0 4.0"] * 6 + ["cuda:1 4.0"] * 6


def test_nccl_wants_a_gpu_for_each_rank() -> None:
    with pytest.raises(UsageError, match='4 ranks with backend="nccl" need 4 GPUs, one each; this machine has 2'):
        check_gpus(_TWO, 4, "nccl")
    check_gpus(_TWO, 2, "nccl")
    check_gpus(_TWO, 64, "phalanx")
    check_gpus(_ONE, 3, "gloo")


def test_more_ranks_than_fit_in_a_gpus_memory_are_refused() -> None:
    with pytest.raises(UsageError, match=r'^device="cuda": 200 ranks on cuda:0 leave one of them nothing for tensors'):
        check_gpus(_ONE, 200, "phalanx")


def test_a_share_that_does_not_fit_is_named_as_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GPU_MEMORY", "0.5")
    with pytest.raises(UsageError, match=r"^PHALANX_GPU_MEMORY: the shares of 3 ranks"):
        check_gpus(_ONE, 3, "phalanx")


def test_ranks_go_round_the_gpus() -> None:
    assert [gpu_of(rank, _TWO) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert [gpu_of(rank, _ONE) for rank in range(3)] == [0, 0, 0]


def _queued_place() -> Any:
    """What is done when this process first uses CUDA."""
    (place,) = [each[0] for each in torch.cuda._queued_calls if "share" in repr(each[0])]
    return place


def _in_child(check: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException as error:
            print(repr(error))
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_rank_takes_its_place_when_it_first_uses_cuda() -> None:
    def check() -> None:
        os.environ.pop("PHALANX_GPU_MEMORY", None)
        for _ in range(2):  # a warm rank takes one for each test
            take_gpu(3, 5, _TWO, is_thread=False)
        place = _queued_place()
        assert (place.index, place.share, place.is_current) == (1, MemoryShare(0.5), True)
        assert (os.environ["LOCAL_RANK"], os.environ["PHALANX_LOCAL_RANK"]) == ("1", "3")
        assert not torch.cuda.is_initialized()

    assert _in_child(check) == 0


def test_ranks_that_have_a_gpu_each_keep_their_number_and_all_of_its_memory() -> None:
    def check() -> None:
        os.environ.pop("PHALANX_GPU_MEMORY", None)
        os.environ.update(LOCAL_RANK="1")
        take_gpu(1, 2, _TWO, is_thread=False)
        place = _queued_place()
        assert (place.index, place.share.is_limited) == (1, False)
        assert os.environ["LOCAL_RANK"] == "1"
        assert "PHALANX_LOCAL_RANK" not in os.environ

    assert _in_child(check) == 0


_SESSION = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    has_gpu = torch.cuda.is_available()  # as many a module does, to skip

    @pytest.mark.ranks(4, device="cuda", kind=["process", "pool", "thread"])
    def test_group(group, rank, device, ranks_kind):
        assert torch.cuda.current_device() == device.index == rank % torch.cuda.device_count()
        tensor = torch.full((1000,), rank + 1.0, device=device)
        group.all_reduce(tensor)
        assert tensor.unique().tolist() == [10]
        if ranks_kind != "thread" and torch.cuda.device_count() == 1:
            assert (os.environ["LOCAL_RANK"], os.environ["PHALANX_LOCAL_RANK"]) == ("0", str(rank))

    @pytest.mark.ranks(4, device="cuda", kind=["process", "pool"])
    def test_process_group(process_group, device, rank):
        tensor = torch.full((3,), rank + 1.0, device=device)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [10] * 3

    @pytest.mark.ranks(16, device="cuda", kind="process")
    def test_ranks_that_use_no_gpu_open_none(rank):
        assert not torch.cuda.is_initialized()

    @pytest.mark.ranks(4, device="cuda", kind=["process", "pool"])
    def test_memory_is_shared_evenly(rank):
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        if torch.cuda.device_count() == 1:
            with pytest.raises(torch.OutOfMemoryError, match="allowed"):
                torch.empty(total // 4, dtype=torch.uint8, device="cuda")
        torch.empty(total // 8, dtype=torch.uint8, device="cuda")
"""


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("first", ["", 'torch.zeros(1, device="cuda")'], ids=["fresh", "CUDA initialised in pytest"])
def test_ranks_share_the_gpus(pytester: pytest.Pytester, first: str) -> None:
    pytester.makeconftest(f"import torch\ndef pytest_runtestloop(): {first or 'pass'}")
    pytester.makepyfile(_SESSION)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "-x")
    result.assert_outcomes(passed=8)

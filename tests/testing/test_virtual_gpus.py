"""Tests on virtual GPUs: with ranks, and in one process with several devices."""

from __future__ import annotations

import pytest
import torch

from phalanx.settings import cache_folder
from phalanx.torch_backend.untyped import dist
from tests.testing.inner_runs import InnerRuns

_CACHE = cache_folder().parent
_MARKS = {
    "ranks(2, gpus=2)": '@pytest.mark.ranks: gpus is 2; give "virtual" for as many as ranks, "virtual:4" for *',
    'ranks(2, gpus="real")': "@pytest.mark.ranks: gpus is 'real'; give \"virtual\" for as many as ranks*",
    'ranks(2, gpus="virtual:")': "@pytest.mark.ranks: gpus is 'virtual:'; give \"virtual\"*",
    'ranks(2, gpus="virtual:2:h1000")': "@pytest.mark.ranks: the model in gpus= is 'h1000'; give one of plain, v100, *",
    'ranks(2, gpus="virtual:0")': "@pytest.mark.ranks: 0 virtual GPUs are not possible; give 1 to 64*",
    'ranks(65, gpus="virtual")': '@pytest.mark.ranks: 65 virtual GPUs are not possible; give 1 to *"virtual:64"',
    'ranks(2, races="raise")': '@pytest.mark.ranks: races is for virtual GPUs; add gpus="virtual"',
    'ranks(2, gpus="virtual", races="loud")': "@pytest.mark.ranks: races is 'loud'; give one of off, warn, raise",
    "virtual_gpus(0)": "@pytest.mark.virtual_gpus(0): give a whole number from 1 to 64",
    'virtual_gpus("4")': "@pytest.mark.virtual_gpus('4'): give a whole number from 1 to 64",
    "virtual_gpus(1, 2)": "@pytest.mark.virtual_gpus takes one number of GPUs, got 2; write @pytest*(4)*",
    "virtual_gpus(2, kind=1)": "@pytest.mark.virtual_gpus takes no kind; write *; options are gpu, races, timeout",
    "virtual_gpus(2, timeout=0)": "@pytest.mark.virtual_gpus: timeout is 0; give a positive number of seconds",
    "virtual_gpus(2, gpu=8)": "@pytest.mark.virtual_gpus: gpu is 8; give one of plain, v100, *",
    "virtual_gpus(2, races=1)": "@pytest.mark.virtual_gpus: races is 1; give one of off, warn, raise",
    "virtual_gpus(2) @pytest.mark.ranks(2)": "@pytest.mark.virtual_gpus is for tests of one process; on ranks give *",
}


@pytest.fixture(autouse=True)
def _virtual_devices_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner runs have a home folder of their own, where every one of them would build the library anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_CACHE))


def test_a_mark_that_makes_no_sense_fails_its_test_with_a_message(inner: InnerRuns) -> None:
    marks = [mark.replace(" @", "\n@") for mark in _MARKS]
    tests = [f"@pytest.mark.{mark}\ndef test_{number}(): note('ran')\n" for number, mark in enumerate(marks)]
    result = inner.run("".join(tests))
    result.assert_outcomes(errors=len(_MARKS))
    result.stdout.fnmatch_lines(list(_MARKS.values()))
    assert not inner.notes()


@pytest.mark.slow
def test_every_rank_has_a_gpu_of_its_own_and_nccl_is_phalanx(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        f"""
        import phalanx

        @pytest.mark.ranks(2, gpus="virtual", kind={kind!r})
        def test_with_fixtures(process_group, device, rank, group):
            tensor = torch.full((2,), rank + 1.0, device=device)
            dist.all_reduce(tensor)
            group.all_reduce(tensor)
            note("fixtures", device, torch.cuda.current_device(), tensor.tolist(), torch.cuda.device_count())
            note("backend", dist.get_backend(), phalanx.is_stand_in(process_group))

        @pytest.mark.skipif({kind!r} == "thread", reason="threads have no variables of their own")
        @pytest.mark.ranks(2, gpus="virtual", kind={kind!r})
        def test_by_itself(rank):
            assert torch.cuda.current_device() == 0
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl")
            tensor = torch.ones(2, device="cuda")
            dist.all_reduce(tensor)
            note("itself", rank, tensor.tolist())
            dist.destroy_process_group()

        @pytest.mark.ranks(2, kind={kind!r})
        def test_ranks_without(rank):
            note("without", torch.cuda.device_count(), dist.is_nccl_available())

        def test_of_pytest_itself():
            note("without", torch.cuda.device_count(), dist.is_nccl_available(), os.environ.get("PHALANX_VIRTUAL_GPUS"))
        """
    )
    is_thread = kind == "thread"
    result.assert_outcomes(passed=3 if is_thread else 4, skipped=int(is_thread))
    itself = [] if is_thread else ["itself 0 [2.0, 2.0]", "itself 1 [2.0, 2.0]"]
    assert inner.notes() == [
        *["backend nccl True"] * 2,
        "fixtures cuda:0 0 [6.0, 6.0] 2",
        "fixtures cuda:1 1 [6.0, 6.0] 2",
        *itself,
        *[f"without 0 {dist.is_nccl_available()}"] * 2,
        f"without 0 {dist.is_nccl_available()} None",
    ]
    assert not torch.cuda.is_available()


@pytest.mark.slow
def test_number_and_model_of_gpus_can_be_chosen(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, gpus="virtual:3")
        def test_more(device, virtual_gpus):
            note("more", device, *virtual_gpus)

        @pytest.mark.ranks(2, gpus="virtual:1")
        def test_fewer(device):
            note("fewer", device, torch.cuda.device_count())

        @pytest.mark.ranks(2, gpus="virtual:h100")
        def test_model(rank):
            note("model", torch.cuda.get_device_capability(), torch.cuda.device_count())

        @pytest.mark.virtual_gpus(3, gpu="L4")
        def test_model_of_one_process(virtual_gpus):
            note("one process", torch.cuda.get_device_capability(), torch.cuda.device_count())

        @pytest.mark.ranks(1, gpus="virtual:3", races="warn")
        def test_variables_for_child_processes(rank):
            names = ("PHALANX_VIRTUAL_GPUS", "PHALANX_RACES", "CUDA_VISIBLE_DEVICES")
            note("children get", *(repr(os.environ[name]) for name in names))
        """
    )
    result.assert_outcomes(passed=5)
    assert inner.notes() == [
        "children get '3' 'warn' ''",
        *["fewer cuda:0 1"] * 2,
        *["model (9, 0) 2"] * 2,
        "more cuda:0 cuda:0 cuda:1 cuda:2",
        "more cuda:1 cuda:0 cuda:1 cuda:2",
        "one process (8, 9) 3",
    ]


@pytest.mark.slow
def test_nccls_rules_hold_and_failures_name_ranks(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import phalanx
        from phalanx.testing import faults

        @pytest.mark.ranks(2, gpus="virtual")
        def test_forgets_its_device(process_group):
            dist.all_reduce(torch.ones(1, device="cuda"))

        @pytest.mark.ranks(2, gpus="virtual")
        def test_mixes_devices(process_group, device, rank):
            if rank == 1:
                torch.ones(1, device=device) + torch.ones(1, device="cuda:0")
            dist.all_reduce(torch.ones(1, device=device))

        @pytest.mark.ranks(2, gpus="virtual")
        def test_loses_a_rank(process_group, device):
            faults.kill(rank=1, at=1)
            with pytest.raises(phalanx.PeerDiedError):
                dist.all_reduce(torch.ones(1, device=device))

        @pytest.mark.ranks(2, gpus="virtual", races="raise")
        def test_forgets_to_wait(device):
            tensor = torch.zeros(4, device=device)
            with torch.cuda.stream(torch.cuda.Stream()):
                tensor.add_(1)
        """
    )
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["rank* of 2: DistBackendError: Duplicate GPU detected : rank 1 and rank 0 both on*"])
    result.stdout.fnmatch_lines(["rank 1 of 2: RuntimeError: Expected all tensors to be on the same device, *cuda:0!*"])
    result.stdout.fnmatch_lines(["rank* of 2: RaceError: *"])


@pytest.mark.slow
def test_a_crash_of_threads_with_gpus_leaves_pytest_alone(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, gpus="virtual", kind="thread")
        def test_crashes(rank):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        @pytest.mark.ranks(2, gpus="virtual", kind="thread")
        def test_fails(rank, device, record_property):
            print("I am", rank)
            warnings.warn("look out")
            record_property("what", 1)
            assert device.index == 0
        """,
        "--junitxml=report.xml",
        "-o",
        "junit_family=legacy",
    )
    result.assert_outcomes(failed=2, warnings=1)
    result.stdout.fnmatch_lines(["ranks 0-1 of 2: was killed by SIGKILL (signal 9)"])
    result.stdout.fnmatch_lines(["rank 1 of 2: AssertionError: assert 1 == 0*", "*rank 1*", "I am 1"])
    assert 'name="what"' in (inner.pytester.path / "report.xml").read_text()


@pytest.mark.slow
def test_one_process_may_have_several_gpus(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def model(virtual_gpus):
            yield torch.nn.DataParallel(torch.nn.Linear(4, 4).to(virtual_gpus[0]), device_ids=list(virtual_gpus))
            note("torn down", torch.cuda.device_count())

        def test_four_by_default(model):
            note("four", model(torch.ones(8, 4, device="cuda:0")).shape[0], *model.device_ids)

        @pytest.mark.virtual_gpus(2, races="raise")
        @pytest.mark.parametrize("number", [0, 1])
        def test_two(virtual_gpus, number, monkeypatch):
            note("two", torch.ones(1, device=virtual_gpus[number]).device, len(virtual_gpus))

        @pytest.mark.virtual_gpus
        class TestMarkAlone:
            def test_method(self):
                note("mark", torch.cuda.device_count(), dist.is_nccl_available(), "RANK" in os.environ)

        def test_pytest_has_none():
            note("none", torch.cuda.device_count())
        """
    )
    result.assert_outcomes(passed=5)
    assert inner.notes() == [
        "four 8 0 1 2 3",
        "mark 4 True True",
        "none 0",
        "torn down 4",
        "two cuda:0 2",
        "two cuda:1 2",
    ]


def test_another_fixture_of_that_name_wins(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def virtual_gpus(): return os.getpid()

        def test_theirs(virtual_gpus): assert virtual_gpus == os.getpid()
        """
    )
    result.assert_outcomes(passed=1)


def test_the_fixture_is_refused_where_there_are_no_gpus(inner: InnerRuns) -> None:
    result = inner.run(
        """
        import unittest

        @pytest.mark.ranks(1)
        def test_on_ranks(virtual_gpus): note("ran")

        def test_too_late(request): request.getfixturevalue("virtual_gpus")

        @pytest.mark.virtual_gpus(2)
        class Cases(unittest.TestCase):
            def test_method(self): note("ran")
        """
    )
    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*'virtual_gpus' of phalanx needs a test that has virtual GPUs; mark the test with @pytest*"]
    )
    result.stdout.fnmatch_lines(
        ["*'virtual_gpus' of phalanx needs a test that has virtual GPUs; name it as an argument"]
    )
    result.stdout.fnmatch_lines(
        ["@pytest.mark.virtual_gpus is for test functions and plain classes, not for unittest*"]
    )
    assert not inner.notes()


@pytest.mark.slow
def test_ranks_of_a_shadow_have_gpus_too(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, gpus="virtual")
        def test_shadow(process_group, device):
            tensor = torch.ones(2, device=device)
            dist.all_reduce(tensor)
            note(device, tensor.tolist())

        @pytest.mark.ranks(2, gpus="virtual", kind="thread")
        def test_threads(rank): note("ran")
        """,
        "--ranks-shadow",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(['gpus="virtual" with kind="thread" needs a fork of pytest\'s own process*'])
    assert inner.notes() == ["cuda:0 [2.0, 2.0]", "cuda:1 [2.0, 2.0]"]

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_GROUPS = """
@pytest.mark.ranks(2)
def test_group(group, rank):
    total = torch.full((3,), rank + 1.0)
    group.all_reduce(total)
    assert total.tolist() == [3, 3, 3]
    assert (group.rank, group.size) == (rank, 2)
    note(type(group).__name__)

@pytest.mark.ranks(2)
def test_process_group(process_group, rank):
    total = torch.full((3,), rank + 1.0)
    dist.all_reduce(total)
    assert total.tolist() == [3, 3, 3]
    note(dist.get_backend())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "pool"])
def test_groups_go_over_the_backend_of_the_command_line(inner: InnerRuns, kind: str) -> None:
    inner.run(_GROUPS, "--ranks-backend=gloo", f"--ranks-kind={kind}").assert_outcomes(passed=2)
    assert inner.notes() == ["TorchGroup", "TorchGroup", "gloo", "gloo"]


@pytest.mark.slow
def test_groups_go_over_the_backend_of_the_ini_file_or_the_mark(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nranks_backend = gloo")
    inner.run(
        _GROUPS
        + """
@pytest.mark.ranks(1, backend="phalanx")
def test_marked(process_group): note(dist.get_backend())
"""
    ).assert_outcomes(passed=3)
    assert inner.notes() == ["TorchGroup", "TorchGroup", "gloo", "gloo", "phalanx"]


@pytest.mark.slow
def test_a_failure_over_gloo_frees_the_others(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, timeout=300)
        def test_fail(process_group, rank):
            if rank == 1: raise ValueError("gone")
            dist.barrier()

        @pytest.mark.ranks(2)
        def test_after(process_group): dist.barrier()
        """,
        "--ranks-backend=gloo",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: ValueError: gone*"])
    assert result.duration < 200


def test_a_backend_that_torch_lacks_is_named(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, backend="mpi")
        def test_mpi(process_group): pass

        @pytest.mark.skipif(dist.is_mpi_available(), reason="there is MPI here")
        def test_is_not_there(): pass
        """
    )
    if "1 skipped" in result.outlines[-1]:
        pytest.skip("this torch has MPI")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*this build of torch has no mpi backend; choose another with --ranks-backend*"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "pool"])
def test_a_test_can_make_its_own_process_group_from_the_environment(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", [1, 2])
        def test_env(rank, world_size, number):
            assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == (str(rank), str(rank))
            assert (os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]) == ("2", "2")
            dist.init_process_group("gloo", init_method="env://")
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 2
            dist.destroy_process_group()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2)

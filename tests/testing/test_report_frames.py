"""Which calls a failed test shows."""

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_MISMATCH = """
@pytest.mark.ranks(4)
def test_mismatch(process_group, rank):
    size = 3 if rank == 2 else 4
    dist.all_reduce(torch.ones(size))
"""


def test_a_failure_in_a_process_group_shows_the_test_and_not_phalanx(inner: InnerRuns, kind: str) -> None:
    result = inner.run(_MISMATCH, f"--ranks-kind={kind}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 2 of 4: MismatchError: all_reduce #1 * (test_inner.py:*)",
            "ranks 0-1, 3: waiting in all_reduce #1, *test_inner.py:*",
            "*- rank 2 -*",
            ">*dist.all_reduce(torch.ones(size))",
            "E*MismatchError: all_reduce #1 of group*",
            "E*here     rank 2 of 4 called all_reduce sum float32 (3,)*",
            "E*differs  ranks 0-1, 3 called all_reduce sum float32 (4,)*",
        ]
    )
    result.stdout.no_fnmatch_line("*distributed_c10d.py*")
    result.stdout.no_fnmatch_line("*torch_backend*")


@pytest.mark.parametrize("way", ["option", "variable"])
def test_everything_is_shown_on_request(inner: InnerRuns, kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "variable":
        monkeypatch.setenv("PHALANX_FULL_TRACE", "1")
    result = inner.run(_MISMATCH, f"--ranks-kind={kind}", *(["--full-trace"] if way == "option" else []))
    result.stdout.fnmatch_lines(["*distributed_c10d.py*", "*torch_backend/*"])


def test_causes_are_folded_too_and_libraries_are_shown(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import json

        @pytest.mark.ranks(2)
        def test_chain(rank):
            try:
                torch.nn.Linear(3, 4)(torch.ones(5))
            except RuntimeError as error:
                json.loads("{")
        """,
        f"--ranks-kind={kind}",
    )
    result.stdout.fnmatch_lines([">*torch.nn.Linear(3, 4)(torch.ones(5))", ">*json.loads*", "*decoder.py*"])
    result.stdout.no_fnmatch_line("*linear.py*")


def test_a_fixture_of_phalanx_that_fails_says_why(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, backend="mpi")
        def test_mpi(process_group):
            pass
        """
    )
    if result.parseoutcomes().get("passed"):
        pytest.skip("this torch has MPI")
    result.stdout.fnmatch_lines(
        ["E   UsageError: this build of torch has no mpi backend*", "in fixture 'process_group'*"]
    )
    result.stdout.no_fnmatch_line("*def check_backend*")


def test_a_mismatch_in_ddp_blames_the_odd_rank(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from torch.nn.parallel import DistributedDataParallel

        @pytest.mark.ranks(4)
        def test_ddp(process_group, rank):
            model = DistributedDataParallel(torch.nn.Linear(4, 2))
            loss = model(torch.ones(2, 4)).sum()
            dist.barrier()
            if rank == 3:
                dist.broadcast(torch.ones(3), 0)
            loss.backward()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 3 of 4: MismatchError: broadcast #* (test_inner.py:*)",
            "ranks 0-2: waiting in all_reduce #*, *test_inner.py:*",
            "*- rank 3 -*",
            "E*here     rank 3 of 4 called broadcast root 0 float32 (3,)*",
            "E*differs  rank* called all_reduce sum float32 (10,)*",
        ]
    )
    result.stdout.no_fnmatch_line("*Got the following error*")
    result.stdout.no_fnmatch_line("*At:")
    result.stdout.no_fnmatch_line("*- rank [0-2] -*")


def test_a_rank_that_dies_in_ddp_is_the_only_one_blamed(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from torch.nn.parallel import DistributedDataParallel

        @pytest.mark.ranks(3)
        def test_ddp(process_group, rank):
            model = DistributedDataParallel(torch.nn.Linear(4, 2))
            loss = model(torch.ones(2, 4)).sum()
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 3: *SIGKILL*", "ranks 0, 2: waiting in all_reduce #*, *test_inner.py:*"])
    result.stdout.no_fnmatch_line("*Got the following error*")

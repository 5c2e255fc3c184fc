from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import phalanx
from phalanx.launch.outcome import RankTraceback
from tests import leftovers
from tests.checks import Stopwatch
from tests.run_ranks import Kind, every_kind, run_ranks


@every_kind
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_results_come_back_in_rank_order(kind: Kind, ranks: int) -> None:
    def program(first: int, second: int) -> tuple[int, int, torch.Tensor]:
        group = phalanx.connect()
        return group.rank, first + second, torch.full((2,), group.rank)

    results = run_ranks(kind, ranks, program, 3, 4)
    assert [rank for rank, _, _ in results] == list(range(ranks))
    assert {total for _, total, _ in results} == {7}
    assert [tensor.tolist() for _, _, tensor in results] == [[rank, rank] for rank in range(ranks)]


@every_kind
def test_keyword_arguments_lambdas_and_closures_travel(kind: Kind) -> None:
    captured = {"value": 5}
    assert phalanx.spawn(lambda a, *, b: a + b + captured["value"], ranks=2, kind=kind, args=[1], kwargs={"b": 2}) == [
        8,
        8,
    ]


@every_kind
def test_a_function_need_not_connect(kind: Kind) -> None:
    assert run_ranks(kind, 2, lambda: "nothing to do with a group") == ["nothing to do with a group"] * 2


def test_results_of_many_mebibytes_come_back() -> None:
    results = run_ranks("process", 2, lambda: b"x" * (20 << 20))
    assert [len(result) for result in results] == [20 << 20] * 2


def test_ranks_are_processes_of_their_own_forked_from_a_warm_one() -> None:
    def program() -> tuple[int, int, bool]:
        return os.getpid(), os.getppid(), "torch" in sys.modules

    first, second = run_ranks("process", 3, program), run_ranks("process", 3, program)
    assert len({pid for pid, _, _ in first + second}) == 6
    assert len({parent for _, parent, _ in first + second}) == 1
    assert os.getpid() not in {pid for pid, _, _ in first}


def test_ranks_are_born_with_all_they_need_for_their_first_collective() -> None:
    """What each of them had to import for itself was most of the time they took to start."""

    def program() -> set[str]:
        before = set(sys.modules)
        phalanx.connect().all_reduce(torch.ones(1))
        return set(sys.modules) - before

    assert run_ranks("process", 2, program) == [set(), set()]


def test_ranks_end_as_programs_do_but_leave_torch_s_operators_whole(tmp_path: Path) -> None:
    """Taking thousands of operators apart copies the pages they are on, and took longer than all else a rank does."""

    def program() -> list[str]:
        inherited = [
            facts.func.__qualname__
            for facts in weakref.finalize._registry.values()  # type: ignore[attr-defined]
            if facts.atexit and facts.func.__module__ == "torch.library"
        ]
        atexit.register((tmp_path / "atexit").touch)
        program.end = weakref.finalize(torch, (tmp_path / "finalize").touch)  # type: ignore[attr-defined]
        return inherited

    assert run_ranks("process", 1, program) == [[]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["atexit", "finalize"]


def test_thread_ranks_are_threads_of_this_process() -> None:
    assert run_ranks("thread", 3, os.getpid) == [os.getpid()] * 3


def test_ranks_take_over_environment_folder_path_and_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_ranks("process", 1, lambda: None)  # the process they are forked from has started before the changes
    monkeypatch.setenv("PHALANX_TEST_VALUE", "here")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["program", "--option"])

    def program() -> tuple[Any, ...]:
        return os.environ.get("PHALANX_TEST_VALUE"), os.environ.get("HOME"), os.getcwd(), sys.path[0], sys.argv

    assert run_ranks("process", 1, program) == [("here", None, str(tmp_path), str(tmp_path), ["program", "--option"])]


def test_what_ranks_print_appears_here(capfd: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        print("out of rank", phalanx.connect().rank)
        print("error of rank", phalanx.connect().rank, file=sys.stderr)

    run_ranks("process", 2, program)
    captured = capfd.readouterr()
    assert {"out of rank 0", "out of rank 1"} <= set(captured.out.splitlines())
    assert {"error of rank 0", "error of rank 1"} <= set(captured.err.splitlines())


def test_threads_of_torch_share_the_cores() -> None:
    def program() -> int:
        return torch.get_num_threads()

    cores = len(os.sched_getaffinity(0))
    assert run_ranks("process", 1, program) == [cores]
    assert run_ranks("process", 2, program) == [max(1, cores // 2)] * 2


@every_kind
def test_an_exception_is_raised_here_with_the_rank_s_own_traceback(kind: Kind) -> None:
    def guilty() -> None:
        raise LookupError("lost", 7)

    def program() -> None:
        group = phalanx.connect()
        if group.rank == 1:
            guilty()
        group.barrier()

    with pytest.raises(LookupError) as failure:
        run_ranks(kind, 3, program)
    assert failure.value.args == ("lost", 7)
    assert any("raised on rank 1 of 3" in note for note in failure.value.__notes__)
    if kind == "process":
        cause = failure.value.__cause__
        assert isinstance(cause, RankTraceback)
        assert "rank 1 of 3:" in str(cause)
        assert "in guilty" in str(cause)
        assert 'raise LookupError("lost", 7)' in str(cause)
    else:
        assert "guilty" in [entry.name for entry in failure.traceback]


@every_kind
def test_an_exception_ends_the_others_at_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute, so no error of a collective can wake them; what is measured includes the grace."""
    monkeypatch.setenv("PHALANX_GRACE_S", "0.1")

    def program() -> None:
        group = phalanx.connect()
        group.barrier()
        if group.rank == 1:
            raise LookupError("lost")
        while True:
            sum(range(100))

    watch = Stopwatch()
    with pytest.raises(LookupError):
        run_ranks(kind, 2, program)
    assert watch.seconds() < 200, "they would go on for ever"
    assert leftovers.wait_until(lambda: not leftovers.rank_processes())
    assert leftovers.wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("rank ")])


@every_kind
def test_the_first_failure_is_raised_and_others_are_noted(kind: Kind) -> None:
    def program() -> None:
        group = phalanx.connect()
        raise ValueError(f"rank {group.rank} is unhappy")

    with pytest.raises(ValueError, match="is unhappy") as failure:
        run_ranks(kind, 2, program)
    assert "raised on rank" in failure.value.__notes__[0]


@every_kind
def test_the_consequence_is_not_blamed_for_the_cause(kind: Kind) -> None:
    """Rank 0 fails at once because rank 1 refused; rank 1's own error is the one to show."""

    def program() -> None:
        group: Any = phalanx.connect(timeout_s=20)
        group.all_reduce(torch.ones(2) if group.rank == 0 else torch.ones(2, device="meta"))

    with pytest.raises(phalanx.UsageError, match="meta"):
        run_ranks(kind, 2, program)


def test_a_killed_rank_is_a_rank_failed_error_with_its_signal() -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()

    with pytest.raises(phalanx.RankFailedError) as failure:
        run_ranks("process", 3, program)
    error = failure.value
    assert str(error) == "rank 1 of 3 was killed by SIGKILL (signal 9)"
    assert (error.rank, error.num_ranks, error.signal, error.exit_code, error.culprits) == (1, 3, 9, None, (1,))


def test_losses_can_be_tolerated() -> None:
    """The dead rank's place in the results is taken by the error that tells of it."""

    def program() -> str:
        group = phalanx.connect(timeout_s=20)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.barrier()
        except phalanx.PeerDiedError:
            return f"one of {group.shrink().size}"
        return "nobody died"

    first, lost, last = phalanx.spawn(program, ranks=3, tolerate_losses=True, timeout_s=60)
    assert (first, last) == ("one of 2", "one of 2")
    assert isinstance(lost, phalanx.RankFailedError)
    assert (lost.rank, lost.signal) == (1, signal.SIGKILL)


def test_a_rank_that_exits_early_is_a_rank_failed_error_with_its_code() -> None:
    with pytest.raises(phalanx.RankFailedError, match="rank 0 of 1 ended with exit code 5 and no result") as failure:
        run_ranks("process", 1, lambda: os._exit(5))
    assert (failure.value.exit_code, failure.value.signal) == (5, None)


def test_sys_exit_without_a_code_is_a_good_end() -> None:
    assert run_ranks("process", 2, sys.exit) == [None, None]


@every_kind
def test_sys_exit_with_a_code_does_not_end_the_caller(kind: Kind) -> None:
    with pytest.raises(phalanx.RankFailedError, match=r"rank \d of 2 called sys.exit\(3\)") as failure:
        run_ranks(kind, 2, lambda: sys.exit(3))
    assert failure.value.exit_code == 3


@every_kind
@pytest.mark.parametrize("is_connected", [True, False])
def test_an_exception_about_a_file_whose_name_is_no_text_is_raised_here(kind: Kind, is_connected: bool) -> None:
    file = os.fsdecode(b"data-\xff")

    def program() -> None:
        group = phalanx.connect() if is_connected else None
        if group is None or group.rank == 1:
            raise LookupError(f"{file} is damaged")
        group.barrier()

    with pytest.raises(LookupError) as caught:
        run_ranks(kind, 2, program)
    assert str(caught.value) == f"{file} is damaged"


def test_an_exception_that_cannot_be_pickled_is_described() -> None:
    def program() -> None:
        class Local(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("not me")

        raise Local("odd one")

    with pytest.raises(phalanx.RankFailedError, match="odd one") as failure:
        run_ranks("process", 2, program)
    assert "odd one" in str(failure.value.__cause__)


def test_a_result_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot pickle") as failure:
        run_ranks("process", 2, threading.Lock)
    assert "raised on rank" in failure.value.__notes__[0]
    (result,) = run_ranks("thread", 1, threading.Lock)
    assert result.acquire(blocking=False)


def test_a_function_that_cannot_be_pickled_is_the_caller_s_mistake() -> None:
    lock = threading.Lock()
    with pytest.raises(phalanx.UsageError, match="the function or its arguments can't be sent to the ranks"):
        run_ranks("process", 2, lambda: lock)
    with pytest.raises(phalanx.UsageError, match="can't be sent"):
        run_ranks("process", 2, lambda x: x, lock)


@pytest.mark.parametrize("ranks", [0, -1, 1.5, "2", None, True, 100_000])
def test_an_impossible_number_of_ranks_is_refused(ranks: Any) -> None:
    with pytest.raises(phalanx.UsageError, match=r"spawn: ranks is .*; give a whole number from 1 to 1024"):
        phalanx.spawn(print, ranks=ranks)


def test_other_impossible_arguments_are_refused() -> None:
    bad: Any = "fork"
    with pytest.raises(phalanx.UsageError, match='spawn: kind is \'fork\'; give "process" or "thread"'):
        phalanx.spawn(print, ranks=1, kind=bad)
    bad = 5
    with pytest.raises(phalanx.UsageError, match="the function must be callable, not int"):
        phalanx.spawn(bad, ranks=1)
    for timeout_s in (0, -1, "soon", float("nan")):
        bad = timeout_s
        with pytest.raises(phalanx.UsageError, match="give a positive number of seconds"):
            phalanx.spawn(print, ranks=1, timeout_s=bad)


@every_kind
def test_ranks_that_take_too_long_are_ended_and_named(kind: Kind) -> None:
    def program() -> None:
        group = phalanx.connect()
        if group.rank == 0:
            return
        while True:
            sum(range(100))

    for timeout_s in (0.3, 3, 30):  # a busy machine may need the longer ones until rank 0 is done
        watch = Stopwatch()
        with pytest.raises(phalanx.OperationTimeoutError) as failure:
            run_ranks(kind, 2, program, timeout_s=timeout_s)
        assert watch.seconds() < timeout_s + 200
        if failure.value.culprits == (1,):
            break
    headline, _, place = str(failure.value).partition("\n  rank 1 at ")
    assert headline == f"spawn: timed out after {timeout_s:.3g} s; of 2 ranks these were not done: 1"
    line = program.__code__.co_firstlineno
    assert place in ("", *(f"launch/{Path(__file__).name}:{line + number} in program" for number in range(6)))
    assert failure.value.culprits == (1,)
    assert leftovers.wait_until(lambda: not leftovers.rank_processes())
    assert leftovers.wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("rank ")])


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_rank_that_leaves_is_named_among_all_ranks(kind: Literal["process", "thread"]) -> None:
    def leave() -> None:
        if phalanx.connect().rank == 2:
            sys.exit(3)

    with pytest.raises(BaseException) as caught:  # what kind of error it is, others test
        phalanx.spawn(leave, ranks=4, kind=kind, timeout_s=30)
    assert any("rank 2 of 4" in text for text in (str(caught.value), *getattr(caught.value, "__notes__", ())))


def test_ranks_may_spawn_threads_as_ranks_of_another_world() -> None:
    def inner() -> int:
        group = phalanx.connect()
        tensor = torch.ones(1)
        group.all_reduce(tensor)
        return int(tensor)

    def program() -> list[int]:
        group = phalanx.connect()
        results: list[int] = phalanx.spawn(inner, ranks=3, kind="thread", timeout_s=30)
        group.barrier()
        return results

    assert run_ranks("process", 2, program) == [[3, 3, 3]] * 2


@pytest.mark.slow
def test_ranks_may_spawn_processes_as_ranks_of_another_world() -> None:
    def program() -> list[int]:
        results: list[int] = phalanx.spawn(lambda: phalanx.connect().size, ranks=2, timeout_s=30)
        return results

    assert run_ranks("process", 2, program) == [[2, 2]] * 2


@every_kind
def test_several_spawns_at_once_do_not_disturb_each_other(kind: Kind) -> None:
    results: list[Any] = []

    def start(number: int) -> None:
        try:
            results.append(run_ranks(kind, 2, lambda: 1 // number))
        except ZeroDivisionError:
            results.append("failed")

    threads = [threading.Thread(target=start, args=(number,)) for number in (0, 1, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, results)) == ["[1, 1]", "[1, 1]", "[1, 1]", "failed"]


def test_sixty_four_threads_are_possible() -> None:
    def program() -> float:
        group = phalanx.connect(timeout_s=30)
        tensor = torch.ones(3)
        group.all_reduce(tensor)
        return float(tensor[0])

    assert run_ranks("thread", 64, program) == [64.0] * 64


@pytest.mark.slow
def test_threads_that_are_ended_early_leave_a_torch_that_can_be_imported() -> None:
    program = """
import phalanx

def work():
    import torch
    raise ValueError("as soon as it can")

for _ in range(3):
    try:
        phalanx.spawn(work, ranks=8, kind="thread", timeout_s=0.01)
    except (ValueError, phalanx.OperationTimeoutError):
        pass
import torch
print(torch.ones(2).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "2.0\n", done.stderr


def test_a_module_that_spawns_whenever_it_is_imported_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(
        "import phalanx\ndef work():\n    return 1\nresults = phalanx.spawn(work, ranks=2, timeout_s=20)\n"
    )
    program = [sys.executable, "-c", "import spawns"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "is importing the module of its function, and that module calls spawn() again" in ended.stderr
    assert 'put the call of spawn() below `if __name__ == "__main__":`' in ended.stderr

from __future__ import annotations

import pytest

from tests.testing.inner_runs import InnerRuns

_COUNTER = """
import counter

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_count(group, rank, number):
    counter.value += 1
    group.barrier()
    note(os.getpid(), counter.value)
    note("parent", os.getpid() == PARENT)

PARENT = os.getpid()
"""


def _split(notes: list[str]) -> tuple[list[str], set[str]]:
    counts = [note.split()[1] for note in notes if note[0].isdigit()]
    return sorted(counts), {note.split()[0] for note in notes if note[0].isdigit()}


def test_processes_are_fresh_for_every_test(inner: InnerRuns) -> None:
    inner.pytester.makepyfile(counter="value = 0")
    inner.run(_COUNTER, "--ranks-kind=process").assert_outcomes(passed=3)
    counts, pids = _split(inner.notes())
    assert counts == ["1"] * 6
    assert len(pids) == 6
    assert "parent True" not in inner.notes()


def test_a_pool_keeps_its_ranks(inner: InnerRuns) -> None:
    inner.pytester.makepyfile(counter="value = 0")
    inner.run(_COUNTER, "--ranks-kind=pool").assert_outcomes(passed=3)
    counts, pids = _split(inner.notes())
    assert counts == ["1", "1", "2", "2", "3", "3"]
    assert len(pids) == 2
    assert "parent True" not in inner.notes()


def test_threads_share_pytests_process(inner: InnerRuns) -> None:
    inner.pytester.makepyfile(counter="value = 0")
    inner.run(_COUNTER, "--ranks-kind=thread").assert_outcomes(passed=3)
    _, pids = _split(inner.notes())
    assert len(pids) == 1
    assert "parent False" not in inner.notes()


def test_a_pool_gives_every_test_a_fresh_group_and_a_clean_slate(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind="pool")
        def test_leaves_things(group, rank, tmp_path, process_group):
            os.environ["LEFT"] = "by the first test"
            os.chdir(tmp_path)
            sys.path.insert(0, "left by the first test")
            group.barrier()
            group.barrier()
            note(os.getpid())

        @pytest.mark.ranks(2, kind="pool")
        def test_sees_none_of_it(group, rank):
            assert "LEFT" not in os.environ
            assert os.getcwd() == HERE
            assert "left by the first test" not in sys.path
            assert not dist.is_initialized()
            assert not group.is_closed
            group.barrier()
            note(os.getpid())

        HERE = os.getcwd()
        """
    )
    result.assert_outcomes(passed=2)
    assert len(set(inner.notes())) == 2


def test_a_pool_is_replaced_after_a_failure(inner: InnerRuns) -> None:
    result = inner.run(
        """
        pytestmark = pytest.mark.ranks(2, kind="pool")

        def test_1(rank): note("before", os.getpid())
        def test_2(rank): note("failing", os.getpid()); assert rank == 5
        def test_3(group): note("after", os.getpid()); group.barrier()
        def test_4(group, rank):
            if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
            group.barrier()
        def test_5(group): note("at last", os.getpid()); group.barrier()
        """
    )
    result.assert_outcomes(passed=3, failed=2)
    by_test: dict[str, set[str]] = {}
    for line in inner.notes():
        name, _, pid = line.rpartition(" ")
        by_test.setdefault(name, set()).add(pid)
    assert by_test["before"] == by_test["failing"]
    assert not by_test["failing"] & by_test["after"]
    assert not by_test["after"] & by_test["at last"]


def test_a_pool_of_each_size_has_ranks_of_its_own(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks([1, 2, 3], kind="pool")
        @pytest.mark.parametrize("again", [0, 1])
        def test_sizes(group, again):
            group.barrier()
            note(os.getpid())
        """
    )
    result.assert_outcomes(passed=6)
    assert len(set(inner.notes())) == 6


def test_a_test_of_a_warm_rank_has_the_values_of_its_fixtures(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def sent(request): return {"name": request.node.name, "tensor": torch.arange(3)}

        @pytest.mark.ranks(2, kind="pool")
        @pytest.mark.parametrize("value", [torch.ones(2), "text", {"a": [1]}], ids=["tensor", "text", "dict"])
        def test_sent(sent, value, rank, request):
            assert sent["name"] == request.node.name
            assert sent["tensor"].tolist() == [0, 1, 2]
            note(value)
        """
    )
    result.assert_outcomes(passed=3)
    expected = ["tensor([1., 1.])", "text", "{'a': [1]}"]
    assert inner.notes() == sorted(expected * 2)


def test_the_mark_beats_the_command_line_which_beats_the_ini_file(inner: InnerRuns) -> None:
    inner.pytester.makeini("[pytest]\nranks_kind = pool")
    source = """
    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_default(rank, number): note("default", os.getpid())

    @pytest.mark.ranks(1, kind="thread")
    def test_marked(rank): note("marked", os.getpid() == PID)

    PID = os.getpid()
    """
    inner.run(source).assert_outcomes(passed=3)
    assert len(set(inner.notes())) == 3
    inner.run(source, "--ranks-kind=process").assert_outcomes(passed=3)
    assert len(set(inner.notes())) == 7
    assert inner.notes().count("marked True") == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--ranks-kind=fiber",), "*--ranks-kind: invalid choice: 'fiber' (choose from *process*thread*pool*)"),
        (("--ranks-backend=smoke",), "*--ranks-backend: invalid choice: 'smoke' (choose from *phalanx*gloo*)"),
        (("--ranks-timeout=soon",), "*--ranks-timeout: invalid float value: 'soon'"),
        (("--ranks-timeout=-1",), "*ranks_timeout: *timeout is -1.0; give a positive number of seconds*no:phalanx*"),
        (("--ranks-timeout=0",), "*ranks_timeout: *timeout is 0.0; give a positive number of seconds*no:phalanx*"),
        (("-o", "ranks_kind=fiber"), "*kind is 'fiber'; give one of process, thread, pool*no:phalanx*"),
        (("-o", "ranks_backend=smoke"), "*backend is 'smoke'; give one of phalanx, gloo, nccl, mpi*no:phalanx*"),
        (("-o", "ranks_timeout=soon"), "*ranks_timeout*'soon'*no:phalanx*"),
    ],
    ids=lambda value: "-".join(value).replace("--", "").replace("-o-", "ini-") if isinstance(value, tuple) else "",
)
def test_bad_values_of_options_are_refused_at_once(inner: InnerRuns, options: tuple[str, ...], told: str) -> None:
    result = inner.run("@pytest.mark.ranks(2)\ndef test_never(rank): note('ran')", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])
    assert not inner.notes()

from __future__ import annotations

import pytest

from phalanx.diagnosis import formatting
from tests.diagnosis.observations import entry


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        ([5, 0, 2, 0], "ranks 0, 2, 5"),
        ([4, 5], "ranks 4-5"),
        (range(100), "ranks 0-99"),
    ],
)
def test_ranks_are_written_as_runs(ranks: list[int], text: str) -> None:
    assert formatting.rank_list(ranks) == text


@pytest.mark.parametrize(("dims", "text"), [((), "()"), ((3,), "(3,)"), ((2, 3), "(2, 3)")])
def test_shapes_are_written_as_torch_does(dims: tuple[int, ...], text: str) -> None:
    assert formatting.shape(dims) == text


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (-1, "died"),
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (256 + 9, "was killed by SIGKILL (signal 9)"),
        (256 + 11, "was killed by SIGSEGV (signal 11)"),
        (256 + 120, "was killed by signal 120"),
    ],
)
def test_deaths_are_told_by_code_or_signal(status: int, text: str) -> None:
    assert formatting.death(status) == text


@pytest.mark.parametrize(
    ("location", "text"), [("", ""), ("train.py:3", "train.py:3"), ("/a/b/c/train.py:61", "c/train.py:61")]
)
def test_places_are_short(location: str, text: str) -> None:
    assert formatting.place(location) == text


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("barrier", "barrier"),
        ("all_reduce", "all_reduce max float32 (2, 3)"),
        ("reduce", "reduce max root 1 float32 (2, 3)"),
        ("reduce_scatter", "reduce_scatter max float32 (2, 3)"),
        ("broadcast", "broadcast root 1 float32 (2, 3)"),
        ("gather", "gather root 1 float32 (2, 3)"),
        ("all_gather", "all_gather float32 (2, 3)"),
    ],
)
def test_calls_are_written_with_what_matters_to_them(operation: str, text: str) -> None:
    assert formatting.call(entry(operation=operation, op="max", root=1, shape=(2, 3))) == text


@pytest.mark.parametrize(("value", "text"), [(0.0014, "1 ms"), (0.25, "250 ms"), (1.0, "1 s"), (12.34, "12.3 s")])
def test_durations_are_brief(value: float, text: str) -> None:
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "os._exit"),
        (256 + 9, "if memory runs out"),
        (256 + 11, "PYTHONFAULTHANDLER=1"),
        (256 + 15, "who sent it"),
        (-1, ""),
    ],
)
def test_there_is_advice_about_each_way_to_die(status: int, words: str) -> None:
    advice = formatting.advice_about_death(status)
    assert words in advice
    assert bool(advice) is bool(words)

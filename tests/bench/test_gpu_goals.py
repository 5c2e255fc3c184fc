from __future__ import annotations

from typing import Any

import pytest

from phalanx_tools.bench.cases import Case, Sample
from phalanx_tools.bench.gpu.goals import (
    MIB,
    compare_with_goal,
    counts,
    goal_of,
    has_training_goal,
    least_bytes,
    share_of_copy,
)
from phalanx_tools.bench.gpu.measure import has_failed, missed_goals
from phalanx_tools.bench.gpu.report import HEAD, line_of, to_gpu_rows, training_lines
from phalanx_tools.bench.gpu.training import exposed_share


@pytest.mark.parametrize(
    ("operation", "tensors_of_1_mib"),
    [
        ("all_reduce", 4 + 4),
        ("all_gather", 1 + 4),  # four inputs of a quarter, four outputs
        ("reduce_scatter", 4 + 1),
        ("broadcast", 1 + 3),
        ("all_to_all", 4 + 4),
        ("send_recv", 2 + 2),  # two pairs
    ],
)
def test_every_input_is_read_once_and_every_output_written_once(operation: str, tensors_of_1_mib: int) -> None:
    assert least_bytes(Case(operation, 4, MIB)) == tensors_of_1_mib * MIB


def test_tensors_below_one_element_per_rank_have_one_each() -> None:
    assert counts(Case("all_gather", 8, 4)) == (1, 1)
    assert least_bytes(Case("all_gather", 8, 4)) == (8 + 64) * 4


def test_the_share_is_that_of_the_least_bytes_in_the_time() -> None:
    case = Case("all_reduce", 4, 256 * MIB)
    assert share_of_copy(case, 1e-3, least_bytes(case) * 2000) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("case", "seconds", "gloo_s", "told"),
    [
        (Case("all_reduce", 4, 256 * MIB), 1.0, 90.0, "ok"),
        (Case("all_reduce", 4, 256 * MIB), 1.4, 200.0, "missed: 71% of 75%"),
        (Case("all_reduce", 4, 256 * MIB), 1.0, 70.0, "missed: 70x of 80x"),
        (Case("broadcast", 8, 64 * MIB), 2.0, 70.0, "missed: 50% of 60%, 35x of 80x"),
        (Case("all_to_all", 2, 4096), 59e-6, 100e-6, "ok"),
        (Case("all_to_all", 8, 4096), 61e-6, 1.0, "missed: over 60 us"),
        (Case("all_gather", 8, 4), 50e-6, 1e-3, "missed: 20x of 25x"),
        (Case("all_gather", 8, 4), 50e-6, None, "missed: no time of Gloo's"),
        (Case("all_gather", 4, 4), 50e-6, None, "ok"),
        (Case("all_reduce", 2, 64 * MIB), 9.0, 1.0, ""),
        (Case("send_recv", 8, 4), 9.0, 1.0, ""),
    ],
)
def test_a_comparison_with_a_goal_names_what_is_missed(
    case: Case, seconds: float, gloo_s: float | None, told: str
) -> None:
    assert compare_with_goal(case, seconds, gloo_s, least_bytes(case)) == told


def test_goals_cover_what_the_sizes_and_ranks_ask_for() -> None:
    assert goal_of(Case("reduce_scatter", 8, 64 * MIB)) is not None
    assert goal_of(Case("reduce_scatter", 8, 256 * MIB)) is None


def _samples() -> list[Sample]:
    case = Case("all_reduce", 8, 4)
    return [
        Sample(case, "phalanx", (40e-6, 50e-6, 45e-6), True),
        Sample(case, "phalanx_torch", (60e-6,), True),
        Sample(case, "gloo", (1.5e-3,), True),
    ]


def test_a_line_has_a_cell_under_every_head() -> None:
    line = line_of(_samples(), 4e12)
    assert line.split() == ["all_reduce", "8", "4", "B", "45.0", "60.0", "1,500.0", "33.3", "25.0", "0.0%", "ok"]
    assert line.index("45.0") + len("45.0") == HEAD.index("phalanx us") + len("phalanx us")


def test_a_line_tells_wrong_results_and_absent_contenders() -> None:
    case = Case("all_reduce", 8, 4)
    assert line_of([Sample(case, "gloo", (1.0,), False)], 4e12).endswith("not measured WRONG: gloo")
    assert line_of([], 4e12) == "nobody could run it"


def test_rows_hold_medians_ratios_and_the_comparison_of_our_own_calls_with_their_goals() -> None:
    ours, through_torch, gloo = to_gpu_rows(_samples(), 4e12)
    assert (ours["contender"], round(ours["median_us"], 3), ours["turns"], ours["goal"]) == ("phalanx", 45.0, 3, "ok")
    assert (through_torch["times_gloo"], gloo["times_gloo"]) == (pytest.approx(25.0), 1.0)
    assert [row["goal"] for row in (through_torch, gloo)] == ["", ""]


def _result(**parts: Any) -> dict[str, Any]:
    return {"rows": [], "training": [], "notes": [], "unmeasured": [], **parts}


def test_a_run_fails_by_wrong_results_and_broken_sections_but_not_by_missed_goals() -> None:
    rows = to_gpu_rows([Sample(Case("all_reduce", 8, 4), "phalanx", (1.0,), True)], 4e12)
    result = _result(rows=rows, notes=["all_reduce, left out: the time was up"])
    assert has_failed(result) == []
    assert missed_goals(result) == ["all_reduce, 8 ranks, 4 B: missed: over 60 us, no time of Gloo's"]
    result["notes"].append("collectives of 8 ranks: PeerDiedError: rank 3 died")
    rows[0]["correct"] = False
    assert len(has_failed(result)) == 2


def test_a_run_without_rows_fails() -> None:
    assert has_failed(_result()) == ["nothing was measured"]


def test_goals_of_what_was_not_measured_are_missed() -> None:
    assert missed_goals(_result(unmeasured=["broadcast, 8 ranks, 4 B"])) == ["broadcast, 8 ranks, 4 B: not measured"]


def test_wrong_gradients_are_named() -> None:
    row = {
        "backend": "phalanx",
        "ranks": 4,
        "gradient_as_bucket_view": True,
        "goal": "ok",
        "correct": False,
        "wrong_gradients": ["last.weight", "last.bias"],
    }
    told = has_failed(_result(rows=to_gpu_rows(_samples(), 4e12), training=[row]))
    assert told == [
        "training over phalanx, 4 ranks, gradient_as_bucket_view=True: wrong gradients of last.weight, last.bias"
    ]


def test_training_is_judged_where_ddp_does_not_copy_gradients_back() -> None:
    assert has_training_goal("phalanx", 4, True)
    for backend, num_ranks, is_view in (("phalanx", 4, False), ("phalanx", 8, True), ("gloo", 4, True)):
        assert not has_training_goal(backend, num_ranks, is_view)


def test_communication_that_hides_costs_nothing() -> None:
    assert exposed_share(0.05, 0.05) == 0.0
    assert exposed_share(0.05, 0.06) == 0.0
    assert exposed_share(0.05, 0.04) == pytest.approx(0.2)


def test_training_lines_compare_with_one_rank_that_does_all_the_work() -> None:
    common = {"sequences_per_rank": 16, "goal": "", "gradient_as_bucket_view": False}
    alone = {**common, "backend": "alone", "ranks": 1, "step": {"median_s": 0.04}, "tokens_per_s": 400_000.0}
    shared = {
        **common,
        "backend": "phalanx",
        "ranks": 4,
        "step": {"median_s": 0.05},
        "silent_step": {"median_s": 0.045},
        "exposed_share": 0.1,
        "quiet_step": {"median_s": 0.048},
        "exposed_beside_quiet": 0.04,
        "tokens_per_s": 300_000.0,
        "silent_tokens_per_s": 350_000.0,
    }
    first, second, third = training_lines([alone, shared, {**shared, "gradient_as_bucket_view": True}])
    assert first == "alone    1 x 16 sequences: step 40.0 ms; 400,000 tokens/s"
    assert "step 50.0 ms, without communication 45.0 ms: 10.0% of the step is communication" in second
    assert "with a hook that communicates nothing 48.0 ms: 4.0%;" in second
    assert second.startswith("phalanx  4 x 16 sequences, DDP's defaults: step 50.0 ms")
    assert third.startswith("phalanx  4 x 16 sequences, gradient_as_bucket_view=True: step 50.0 ms")
    assert second.endswith("0.75x of one rank that does all the work, 0.88x without communication")

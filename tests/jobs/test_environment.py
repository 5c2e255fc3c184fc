from __future__ import annotations

import pytest

from phalanx.errors import UsageError
from phalanx.jobs.environment import choose_gpus, parse_variables


def test_variables_may_contain_equals_signs_and_nothing() -> None:
    assert parse_variables(["A=b=c", "EMPTY=", "A=last"]) == {"A": "last", "EMPTY": ""}


@pytest.mark.parametrize("text", ["NAME", "=value", "", "A\0=b"])
def test_what_sets_no_variable_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give NAME=VALUE"):
        parse_variables([text])


@pytest.mark.parametrize(
    ("spec", "visible"),
    [
        ("none", ""),
        ("all", None),
        ("0", "0"),
        ("3, 1", "3,1"),
        ("GPU-5ebe9f43-ac33,MIG-1f", "GPU-5ebe9f43-ac33,MIG-1f"),
    ],
)
def test_gpus_are_chosen_for_all_ranks(spec: str, visible: str | None) -> None:
    assert choose_gpus(spec, {"CUDA_VISIBLE_DEVICES": "7", "A": "b"}).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize("spec", ["", "two", "0,", "-1", "0;1", "1,1"])
def test_what_names_no_gpus_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="names"):
        choose_gpus(spec, {})

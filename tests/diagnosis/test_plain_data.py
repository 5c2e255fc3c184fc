"""Typed data as plain data, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from phalanx.diagnosis.observation import from_json, to_json
from phalanx.diagnosis.plain_data import from_plain, to_plain
from tests.diagnosis.observations import entry, fault, group, observation, receiving, row


class _Point(NamedTuple):
    x: int
    name: str = ""


@dataclass(frozen=True)
class _Shape:
    kind: Literal["round", "square"]
    points: list[_Point]
    sizes: tuple[int, ...]
    weight: float = 1.0
    middle: _Point | None = None
    notes: list[str] = field(default_factory=list)


_SHAPE = _Shape("round", [_Point(1, "a"), _Point(2)], (3, 4), 0.5, _Point(7))


def test_what_is_written_is_read_again_with_its_types() -> None:
    assert from_plain(_Shape, json.loads(json.dumps(to_plain(_SHAPE)))) == _SHAPE


def test_what_has_a_default_may_be_missing_and_what_is_not_known_is_passed_over() -> None:
    data = {"kind": "square", "points": [{"x": 1, "colour": "red"}], "sizes": []}
    assert from_plain(_Shape, data) == _Shape("square", [_Point(1)], ())


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "oval"},
        {"kind": ["round"]},
        {"points": [1]},
        {"points": [{"x": "1"}]},
        {"points": [{"name": "a"}]},
        {"points": {}},
        {"sizes": [None]},
        {"weight": 1 << 64},
        {"weight": float("nan")},
        {"middle": []},
    ],
)
def test_what_is_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_plain(_Shape, {**to_plain(_SHAPE), **change})


def test_a_flight_record_is_read_as_it_was_seen() -> None:
    broken = fault("mismatch", wanted_bytes=12, found_bytes=8)
    seen = observation(group(receiving(0, 1), row(1, begun=entry(device="cuda")), fault=broken), notes=["a note"])
    assert from_json(to_json(seen), "record") == seen


def test_a_flight_record_from_before_faults_had_sizes_is_read() -> None:
    record = json.loads(to_json(observation(group(row(0), row(1), fault=fault("timeout", text="stream")))))
    old = record["groups"][0]["fault"]
    for name in ("awaited", "wanted_bytes", "found_bytes"):
        del old[name]
    record["job"] = {}
    assert from_json(json.dumps(record), "record").groups[0].fault == fault("timeout", text="stream")

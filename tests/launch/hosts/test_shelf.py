"""The values of the board and the store on the rendezvous server."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.launch.hosts.shelf import Shelf


class Asker:
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.answers: list[dict[str, Any]] = []

    def ask(self, now: float = 0.0, **request: object) -> dict[str, Any] | None:
        self.shelf.serve(dict(request), self.take, now)
        return self.answers[-1] if self.answers else None

    def take(self, answer: dict[str, Any]) -> None:
        self.answers.append(answer)


def test_values_counters_and_lists() -> None:
    asker = Asker(Shelf())
    assert asker.ask(op="set", key="a", value="1") == {}
    assert asker.ask(op="get", keys=["a"]) == {"values": ["1"]}
    assert asker.ask(op="add", key="n", amount=2) == {"total": 2}
    assert asker.ask(op="add", key="n", amount=-5) == {"total": -3}
    assert asker.ask(op="append", key="a", value="2") == {}
    assert asker.ask(op="check", keys=["a", "b"]) == {"has_all": False}
    assert asker.ask(op="list", prefix="a") == {"keys": ["a"]}
    assert asker.ask(op="delete", key="a") == {"was_there": True}
    assert asker.ask(op="delete", key="a") == {"was_there": False}


def test_compare_set_does_as_torchs_stores_do() -> None:
    asker = Asker(Shelf())
    assert asker.ask(op="compare_set", key="a", expected="x", value="1") == {"value": "x"}
    assert asker.ask(op="compare_set", key="a", expected="", value="1") == {"value": "1"}
    assert asker.ask(op="compare_set", key="a", expected="2", value="3") == {"value": "1"}
    assert asker.ask(op="compare_set", key="a", expected="1", value="3") == {"value": "3"}


def test_a_get_is_answered_when_the_last_key_comes() -> None:
    shelf = Shelf()
    waiting, writer = Asker(shelf), Asker(shelf)
    assert waiting.ask(op="get", keys=["a", "b"], wait_s=5.0) is None
    writer.ask(op="set", key="b", value="2")
    assert waiting.answers == []
    writer.ask(op="set", key="a", value="1")
    assert waiting.answers == [{"values": ["1", "2"]}]
    assert shelf.due_at == float("inf")


def test_a_get_names_what_is_missing_when_its_time_is_up() -> None:
    shelf = Shelf()
    waiting = Asker(shelf)
    waiting.ask(10.0, op="set", key="a", value="1")
    waiting.answers.clear()
    waiting.ask(10.0, op="get", keys=["a", "b"], wait_s=2.0)
    assert shelf.due_at == 12.0
    shelf.expire(11.9)
    assert waiting.answers == []
    shelf.expire(12.0)
    assert waiting.answers == [{"missing": ["b"]}]


@pytest.mark.parametrize(
    "request_",
    [{"op": "fly"}, {"op": "set"}, {"op": "add", "key": "text", "amount": 1}, {"op": "get", "keys": 7}, {"op": []}],
)
def test_a_wrong_request_is_answered_and_does_no_harm(request_: dict[str, Any]) -> None:
    asker = Asker(Shelf())
    asker.ask(op="set", key="text", value="no number")
    answer = asker.ask(**request_)
    assert answer is not None
    assert "error" in answer

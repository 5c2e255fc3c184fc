"""Signed values in a store that anybody may write to."""

from __future__ import annotations

import json
import threading
import time

import pytest

from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.launch.board import Seal, StoreBoard


class DictStore:
    """What a StoreBoard needs of torch's stores."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])


def board(store: DictStore, token: str = "secret", job: str = "7") -> StoreBoard:
    return StoreBoard(store, Seal(token, job))


def test_what_one_rank_writes_another_one_reads() -> None:
    store = DictStore()
    board(store).set("card/0", 'any "text" \n\x1b')
    board(store).set("card/1", "")
    assert board(store).get_many(["card/1", "card/0"], 1.0) == ["", 'any "text" \n\x1b']


def test_jobs_without_a_token_work_too() -> None:
    store = DictStore()
    board(store, token="").set("card", "here")
    assert board(store, token="").get("card", 1.0) == "here"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"plain text",
        b"[1, 2, 3]",
        b'"text"',
        b'{"text": "x"}',
        b'{"text": "x", "by": "y", "hmac": null}',
        b'{"text": 1, "by": "y", "hmac": "00"}',
        b'{"text": "x", "by": "\\u001b[2J", "hmac": "00"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"\x80\x04cposix\nsystem\n",
    ],
)
def test_a_value_that_is_not_of_a_board_is_refused(value: bytes) -> None:
    store = DictStore()
    board(store).set("card", "x")
    store.values = dict.fromkeys(store.values, value)
    with pytest.raises(UsageError, match="was written by a program other than phalanx"):
        board(store).get("card", 1.0)


@pytest.mark.parametrize(("token", "job"), [("other", "7"), ("", "7"), ("secret", "8")])
def test_a_value_of_another_token_or_job_is_refused_and_its_writer_named(token: str, job: str) -> None:
    store = DictStore()
    StoreBoard(store, Seal(token, job, "host3 (pid 12)")).set("card", "x")
    with pytest.raises(UsageError, match=r"written by 'host3 \(pid 12\)', as it says itself") as caught:
        board(store).get("card", 1.0)
    assert "PHALANX_JOB_TOKEN" in str(caught.value)


@pytest.mark.parametrize("part", ["text", "by", "hmac"])
def test_a_changed_part_is_noticed(part: str) -> None:
    store = DictStore()
    board(store).set("card", "x")
    ((key, value),) = store.values.items()
    store.values[key] = json.dumps({**json.loads(value), part: "1"}).encode()
    with pytest.raises(UsageError, match="its signature is wrong"):
        board(store).get("card", 1.0)


def test_a_value_does_not_count_under_another_key() -> None:
    store = DictStore()
    board(store).set("verdict/1", "rank 3 died")
    ((key, value),) = store.values.items()
    store.values = {key.replace("verdict/1", "verdict/2"): value}
    with pytest.raises(UsageError, match="verdict/2"):
        board(store).get("verdict/2", 1.0)


def test_a_missing_value_is_named_when_the_time_is_up() -> None:
    store = DictStore()
    board(store).set("card/0", "x")
    with pytest.raises(OperationTimeoutError, match=r'nobody has written "card/1" and 1 more .* within 0\.05 s'):
        board(store).get_many(["card/0", "card/1", "card/2"], 0.05)


def test_get_waits_for_a_value() -> None:
    store = DictStore()
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(board(store).get("card", 30.0)))
    reader.start()
    assert not found
    board(store).set("card", "late")
    reader.join(30.0)
    assert found == ["late"]


def test_counters_count() -> None:
    store = DictStore()
    assert [board(store).add("calls"), board(store).add("calls", 2)] == [1, 3]


def test_a_value_takes_no_long_time() -> None:
    store = DictStore()
    began = time.monotonic()
    for number in range(1000):
        board(store).set(f"card/{number}", "x" * 100)
    assert len(board(store).get_many([f"card/{number}" for number in range(1000)], 10.0)) == 1000
    assert time.monotonic() - began < 5.0

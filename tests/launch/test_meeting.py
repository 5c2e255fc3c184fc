from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from phalanx.engine import create_symmetric_segment
from phalanx.errors import OperationTimeoutError, SharedMemoryError, UsageError
from phalanx.launch.meeting import Gathering, HasDescriptor, MeetingResult, meet


def _gathering(name: str, size: int, **changes: Any) -> Gathering:
    rules: dict[str, Any] = {
        "name": f"a test|{name}",
        "is_complete": lambda cards: len(cards) == size,
        "order": sorted,
        "create": lambda cards: create_symmetric_segment("test", len(cards), 10),
        "describe_missing": lambda cards: f"only {sorted(cards)} came",
        "timeout_s": 20.0,
        **changes,
    }
    return Gathering(**rules)


def _meet_all(gathering: Gathering, cards: Sequence[Any]) -> list[MeetingResult | BaseException]:
    results: list[MeetingResult | BaseException] = [RuntimeError("never came back")] * len(cards)

    def come(number: int) -> None:
        try:
            results[number] = meet(gathering, cards[number], lambda outcome: outcome)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=come, args=(number,)) for number in range(len(cards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def _outcomes(results: list[MeetingResult | BaseException]) -> list[MeetingResult]:
    assert all(isinstance(result, MeetingResult) for result in results), results
    outcomes = [result for result in results if isinstance(result, MeetingResult)]
    for outcome in outcomes:
        os.close(outcome.descriptor)
    return outcomes


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everybody_leaves_with_the_same_memory_and_order(size: int) -> None:
    cards = [10 * (size - number) for number in range(size)]
    results = _meet_all(_gathering(secrets.token_hex(8), size), cards)
    inodes = {os.fstat(result.descriptor).st_ino for result in results if isinstance(result, MeetingResult)}
    assert len(inodes) == 1
    for card, outcome in zip(cards, _outcomes(results), strict=True):
        assert outcome.cards == tuple(sorted(cards))
        assert outcome.cards[outcome.position] == card


def test_the_same_name_can_be_used_again() -> None:
    gathering = _gathering(secrets.token_hex(8), 3)
    for _ in range(5):
        assert [outcome.position for outcome in _outcomes(_meet_all(gathering, [0, 1, 2]))] == [0, 1, 2]


def test_meetings_of_different_names_do_not_mix() -> None:
    results: dict[str, list[MeetingResult]] = {}

    def hold(name: str) -> None:
        results[name] = _outcomes(_meet_all(_gathering(name, 2), [f"{name} 0", f"{name} 1"]))

    names = [secrets.token_hex(8) for _ in range(3)]
    threads = [threading.Thread(target=hold, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for name in names:
        assert results[name][0].cards == (f"{name} 0", f"{name} 1")


def test_whoever_waits_in_vain_hears_who_is_missing() -> None:
    for timeout_s in (0.1, 2, 20):  # a busy machine may need the longer ones until both have met
        results = _meet_all(_gathering(secrets.token_hex(8), 3, timeout_s=timeout_s), [1, 2])
        assert all(isinstance(result, OperationTimeoutError) for result in results)
        wanted = f"a test: timed out after {timeout_s:.3g} s; only [1, 2] came"
        if all(str(result).startswith(wanted) for result in results):
            return
    pytest.fail(str(results))


def test_a_contradiction_is_told_to_everybody() -> None:
    def refuse(cards: Sequence[int]) -> Sequence[int]:
        raise UsageError(f"{sorted(cards)} do not fit")

    for result in _meet_all(_gathering(secrets.token_hex(8), 3, order=refuse), [1, 2, 3]):
        assert isinstance(result, UsageError)
        assert "[1, 2, 3] do not fit" in str(result)


def test_a_lack_of_memory_is_told_to_everybody() -> None:
    def create(cards: Sequence[int]) -> HasDescriptor:
        return create_symmetric_segment("test", len(cards), 1 << 50)

    for result in _meet_all(_gathering(secrets.token_hex(8), 2, create=create), [1, 2]):
        assert isinstance(result, SharedMemoryError)
        assert result.needed_bytes == 2 << 50


def test_a_meeting_of_one_does_not_wait() -> None:
    (outcome,) = _outcomes(
        [meet(_gathering(secrets.token_hex(8), 1, timeout_s=0.001), "alone", lambda outcome: outcome)]
    )
    assert (outcome.position, outcome.cards) == (0, ("alone",))

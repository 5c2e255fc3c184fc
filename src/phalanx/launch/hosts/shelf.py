"""The values of a job's board and store, and the requests that wait for some of them. It does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phalanx.launch.hosts.link import Message

_MOST_CHARACTERS = 1 << 30  # of all values together

Answer = Callable[[Message], None]


@dataclass(eq=False)
class _Wait:
    keys: Sequence[str]
    deadline: float
    answer: Answer


@dataclass
class Shelf:
    """Texts by key. A request is a message with an `op`; its answer is given at once or when it is complete."""

    values: dict[str, str] = field(default_factory=dict)
    _waits: list[_Wait] = field(default_factory=list)
    _num_characters: int = 0

    @property
    def due_at(self) -> float:
        """When to call expire()."""
        return min((wait.deadline for wait in self._waits), default=float("inf"))

    def serve(self, request: Message, answer: Answer, now: float) -> None:
        """Do what a request asks for.

        Args:
            request: The message.
            answer: Called with the answer, perhaps later.
            now: The time.
        """
        operation = _OPERATIONS.get(str(request.get("op")))
        if operation is None:
            answer({"error": f"unknown operation {request.get('op')!r}"})
            return
        try:
            operation(self, request, answer, now)
        except (KeyError, TypeError, ValueError) as error:
            answer({"error": f"wrong request: {type(error).__name__}: {error}"})

    def expire(self, now: float) -> None:
        """Answer the requests that have waited long enough."""
        for wait in [wait for wait in self._waits if wait.deadline <= now]:
            self._waits.remove(wait)
            wait.answer({"missing": [key for key in wait.keys if key not in self.values]})

    def _get(self, request: Message, answer: Answer, now: float) -> None:
        keys = [str(key) for key in request["keys"]]
        if all(key in self.values for key in keys):
            answer({"values": [self.values[key] for key in keys]})
        else:
            self._waits.append(_Wait(keys, now + float(request.get("wait_s", 0.0)), answer))

    def _set(self, request: Message, answer: Answer, now: float) -> None:
        self._put(str(request["key"]), str(request["value"]))
        answer({})

    def _add(self, request: Message, answer: Answer, now: float) -> None:
        key = str(request["key"])
        total = int(self.values.get(key, "0")) + int(request["amount"])
        self._put(key, str(total))
        answer({"total": total})

    def _append(self, request: Message, answer: Answer, now: float) -> None:
        key = str(request["key"])
        self._put(key, self.values.get(key, "") + str(request["value"]))
        answer({})

    def _compare_set(self, request: Message, answer: Answer, now: float) -> None:
        """Do as torch's stores do: an expected value of "" also fits a key that is not there."""
        key, expected, wanted = str(request["key"]), str(request["expected"]), str(request["value"])
        if self.values.get(key, "") == expected:
            self._put(key, wanted)
        answer({"value": self.values.get(key, expected)})

    def _check(self, request: Message, answer: Answer, now: float) -> None:
        answer({"has_all": all(str(key) in self.values for key in request["keys"])})

    def _delete(self, request: Message, answer: Answer, now: float) -> None:
        value = self.values.pop(str(request["key"]), None)
        self._num_characters -= len(value or "")
        answer({"was_there": value is not None})

    def _list(self, request: Message, answer: Answer, now: float) -> None:
        prefix = str(request["prefix"])
        answer({"keys": [key for key in self.values if key.startswith(prefix)]})

    def _put(self, key: str, value: str) -> None:
        grown = self._num_characters + len(value) - len(self.values.get(key, ""))
        if grown > _MOST_CHARACTERS:
            raise ValueError("the store is full")
        self._num_characters = grown
        self.values[key] = value
        for wait in [wait for wait in self._waits if key in wait.keys]:
            if all(each in self.values for each in wait.keys):
                self._waits.remove(wait)
                wait.answer({"values": [self.values[each] for each in wait.keys]})


_OPERATIONS: dict[str, Callable[[Shelf, Message, Answer, float], None]] = {
    "get": Shelf._get,
    "set": Shelf._set,
    "add": Shelf._add,
    "append": Shelf._append,
    "compare_set": Shelf._compare_set,
    "check": Shelf._check,
    "delete": Shelf._delete,
    "list": Shelf._list,
}

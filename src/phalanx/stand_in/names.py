"""Names in torch that mean something else for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING: Any = object()


class ReplacedNames:
    """Attributes and entries that were replaced, and how to put back what was there before."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class."""
        before = getattr(owner, name, _MISSING)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def entry(self, owner: dict[str, Any], key: str, value: Any) -> None:
        """Set an entry of a dictionary."""
        before = owner.get(key, _MISSING)
        if before is _MISSING:
            self._undo.append(lambda: owner.pop(key))
        else:
            self._undo.append(lambda: owner.__setitem__(key, before))
        owner[key] = value

    def member(self, owner: list[str], name: str) -> None:
        """Add a name to a list that has not got it."""
        if name not in owner:
            owner.append(name)
            self._undo.append(lambda: owner.remove(name))

    def put_back(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            self._undo.pop()()

"""What phalanx changes in torch: every name, why it is changed, until when that is needed, and how it is undone.

All code that changes torch does so through a `Patches`. docs/internals/torch-patches.md lists the names, and `phalanx
doctor` shows when they are changed. This module does not import torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

Names = Mapping[str, object]
"""Dotted paths, such as "torch._C._cuda_getDevice", and what they shall stand for."""

MISSING: Any = object()
ON_REQUEST = "phalanx.patches.undo_all()"


class Patch(NamedTuple):
    """One change.

    Attributes:
        name: The dotted path; an entry of a dictionary has its key in brackets.
        when: What makes phalanx change it.
        why: What the change is for.
        until: What makes it needless, such as a version of torch; or "always".
        undo: What undoes it; or "never", and the reason.
    """

    name: str
    when: str
    why: str
    until: str
    undo: str


class Patches:
    """Changes that are made, and undone, together. Not for several threads at once.

    Args:
        when: What makes phalanx make these changes.
        undo: What undoes them; starts with "never" if nothing does, and says why.
    """

    def __init__(self, when: str, *, undo: str = ON_REQUEST) -> None:
        self.when = when
        self.how_undone = undo
        self.patches: list[Patch] = []
        self._undo: list[Callable[[], object]] = []
        self._lock = threading.RLock()  # guards the rest
        self._num_users = 0

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, path: str, value: object, why: str, *, until: str = "always", only_if_there: bool = False) -> Any:
        """Let a name of a module or a class stand for something else; return what it stood for, or MISSING.

        Nothing happens if the module or class is not there, as in other versions of torch.
        """
        owner_path, _, name = path.rpartition(".")
        owner = find(owner_path)
        before = MISSING if owner is MISSING else vars(owner).get(name, MISSING)
        if owner is MISSING or (only_if_there and before is MISSING):
            return MISSING
        setattr(owner, name, value)
        self.note(path, lambda: _put_back(owner, name, before), why, until=until)
        return before

    def replace_all(self, names: Names, why: str) -> None:
        """Do that with several names for one reason."""
        for path, value in names.items():
            self.replace(path, value, why)

    def wrap(self, paths: Sequence[str], wrap: Callable[[Any], Any], why: str, *, until: str = "always") -> None:
        """Replace a function under all names that it has; `wrap` gets the function and returns the new one."""
        original = find(paths[0])
        if original is not MISSING:
            wrapped = wrap(original)
            for path in paths:
                self.replace(path, wrapped, why, until=until, only_if_there=True)

    def set_item(self, path: str, key: str, value: object, why: str) -> None:
        """Set an entry of a dictionary."""
        owner = find(path)
        before = owner.get(key, MISSING)
        owner[key] = value
        self.note(
            f'{path}["{key}"]',
            lambda: owner.pop(key) if before is MISSING else owner.__setitem__(key, before),
            why,
        )

    def add_item(self, path: str, item: str, why: str) -> None:
        """Add a string to a list that does not have it."""
        owner = find(path)
        if item not in owner:
            owner.append(item)
            self.note(f'{path}["{item}"]', lambda: owner.remove(item), why)

    def note(self, name: str, undo: Callable[[], object], why: str, *, until: str = "always") -> None:
        """Note a change that the caller has made, and what undoes it."""
        self._add(undo)
        self.patches.append(Patch(name, self.when, why, until, self.how_undone))

    def _add(self, undo: Callable[[], object]) -> None:
        if not self._undo:
            _made.append(self)
        self._undo.append(undo)

    def after_import(self, module: str, change: Callable[[], None]) -> None:
        """Make changes once a module has been imported: now, if it has been.

        For modules of torch that take seconds to import and that most programs never need.
        """
        if module in sys.modules:
            change()
        else:
            finder = _Finder(module, change)
            sys.meta_path.insert(0, finder)
            self._add(finder.go_away)

    def enter(self, change: Callable[[], None]) -> None:
        """Make changes for one more user: `change` is called for the first one. Threads may call this."""
        with self._lock:
            self._num_users += 1
            if self._num_users == 1:
                change()

    def leave(self) -> None:
        """Undo the changes when the last user leaves. Threads may call this."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self.undo()

    def undo(self) -> None:
        """Put everything back, the last change first."""
        while self._undo:
            self._undo.pop()()
        self.patches.clear()
        _made[:] = [other for other in _made if other is not self]


_made: list[Patches] = []  # those of this process that have changed something, in this order


def changes() -> Iterator[Patch]:
    """Go through all changes that are in force in this process."""
    for patches in _made:
        yield from patches.patches


def undo_all() -> None:
    """Undo the changes that nothing else undoes, but for the permanent ones. No group of phalanx may be in use."""
    for patches in reversed(_made.copy()):
        if patches.how_undone == ON_REQUEST:
            patches.undo()


def find(path: str) -> Any:
    """Return the module, class or other object that a path leads to; MISSING if there is none."""
    parts = path.split(".")
    known = max((length for length in range(1, len(parts) + 1) if ".".join(parts[:length]) in sys.modules), default=0)
    found: Any = sys.modules[".".join(parts[:known])] if known else MISSING
    for part in parts[known:]:
        found = getattr(found, part, MISSING)
    return found


def _put_back(owner: Any, name: str, value: object) -> None:
    if value is not MISSING:
        setattr(owner, name, value)
    else:
        delattr(owner, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, as the others would, and then goes away."""

    def __init__(self, module: str, change: Callable[[], None]) -> None:
        self.module = module
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self.go_away()
            spec.loader = _Loader(spec.loader, self._change)
        return spec

    def go_away(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, change: Callable[[], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change()

    def __getattr__(self, name: str) -> object:  # inspect asks loaders for sources
        return getattr(self._loader, name)

"""What phalanx changes in torch: every name, why it is changed, until when that is needed, and how it is undone.

All code that changes torch does so through a `Patches`. docs/internals/torch-patches.md lists the names, and `phalanx
doctor` shows when they are changed. This module does not import torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

Names = Mapping[str, object]
"""Dotted paths, such as "torch._C._cuda_getDevice", and what they shall stand for."""

_log = logging.getLogger(__name__)

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

    A name that somebody else has changed since keeps their value when it is undone. Their value may call ours, so what
    `wrap` puts in must not harm groups of other backends, nor ask for anything that is undone.

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
        ours = vars(owner).get(name, MISSING)
        self.note(path, lambda: _put_back(path, ours, owner, name, before), why, until=until)
        return before

    def replace_all(self, names: Names, why: str) -> None:
        """Do that with several names for one reason."""
        for path, value in names.items():
            self.replace(path, value, why)

    def wrap(self, paths: Sequence[str], wrap: Callable[[Any], Any], why: str, *, until: str = "always") -> None:
        """Replace a function under all names that it has; `wrap` gets the function and returns the new one.

        A name that stands for another function, as when a program has changed it, gets a new function of its own.
        """
        made: list[tuple[Any, Any]] = []  # functions, and the new ones
        for path in paths:
            function = find(path)
            if function is MISSING:
                continue
            wrapped = next((new for old, new in made if old is function), MISSING)
            if wrapped is MISSING:
                wrapped = wrap(function)
                made.append((function, wrapped))
            self.replace(path, wrapped, why, until=until, only_if_there=True)

    def set_item(self, path: str, key: str, value: object, why: str) -> None:
        """Set an entry of a dictionary."""
        owner = find(path)
        before = owner.get(key, MISSING)
        owner[key] = value
        name = f'{path}["{key}"]'
        self.note(name, lambda: _put_item_back(name, value, owner, key, before), why)

    def add_item(self, path: str, item: str, why: str) -> None:
        """Add a string to a list that does not have it."""
        owner = find(path)
        if item not in owner:
            owner.append(item)
            self.note(f'{path}["{item}"]', lambda: owner.remove(item) if item in owner else None, why)

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
            importlib.import_module(module)  # another thread may still be at it: this waits
            change()
        else:
            finder = _Finder(module, change)
            sys.meta_path.insert(0, finder)
            self._add(finder.remove)

    def make(self, change: Callable[[], None]) -> None:
        """Call `change`, which makes all changes. If it raises, what it has done so far is undone."""
        try:
            change()
        except BaseException:
            self.undo()
            raise

    def enter(self, change: Callable[[], None]) -> None:
        """Make changes for one more user: `change` is called for the first one. Threads may call this.

        If `change` raises, what it has done so far is undone, and there is no new user.
        """
        with self._lock:
            if self._num_users == 0:
                self.make(change)
            self._num_users += 1

    def leave(self) -> None:
        """Undo the changes when the last user leaves. Threads may call this."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self.undo()

    def undo(self) -> None:
        """Put everything back, the last change first. If a step raises, the others are done before that is raised."""
        with self._lock:
            steps = self._undo[::-1]
            self._undo.clear()
            self.patches.clear()
            _made[:] = [other for other in _made if other is not self]
        _do_all(steps)


_made: list[Patches] = []  # those of this process that have changed something, in this order


def changes() -> Iterator[Patch]:
    """Go through all changes that are in force in this process."""
    for patches in _made:
        yield from patches.patches


def undo_all() -> None:
    """Undo the changes that nothing else undoes, but for the permanent ones. No group of phalanx may be in use."""
    _do_all([patches.undo for patches in reversed(_made) if patches.how_undone == ON_REQUEST])


def find(path: str) -> Any:
    """Return the module, class or other object that a path leads to; MISSING if there is none."""
    parts = path.split(".")
    known = max((length for length in range(1, len(parts) + 1) if ".".join(parts[:length]) in sys.modules), default=0)
    found: Any = sys.modules[".".join(parts[:known])] if known else MISSING
    for part in parts[known:]:
        found = getattr(found, part, MISSING)
    return found


def _do_all(steps: Sequence[Callable[[], object]]) -> None:
    """Do every step, and then raise the first exception."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _put_back(path: str, ours: object, owner: Any, name: str, before: object) -> None:
    if not _is_ours(path, ours, vars(owner).get(name, MISSING)):
        return
    if before is not MISSING:
        setattr(owner, name, before)
    elif ours is not MISSING:
        delattr(owner, name)


def _put_item_back(path: str, ours: object, owner: dict[str, object], key: str, before: object) -> None:
    if not _is_ours(path, ours, owner.get(key, MISSING)):
        return
    if before is not MISSING:
        owner[key] = before
    else:
        del owner[key]


def _is_ours(path: str, ours: object, found: object) -> bool:
    if found is not ours:
        _log.warning("%s was changed after phalanx changed it: it is left as it is", path)
    return found is ours


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, as the others would, until it has been loaded."""

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
            spec.loader = _Loader(spec.loader, self)
        return spec

    def loaded(self) -> None:
        """Make the changes, unless they were made or undone meanwhile."""
        if self in sys.meta_path:
            self.remove()
            self._change()

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._finder.loaded()

    def __getattr__(self, name: str) -> object:  # inspect asks loaders for sources
        return getattr(self._loader, name)

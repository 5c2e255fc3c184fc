"""Names in torch and what they shall stand for, by dotted path, and putting them in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping

Names = dict[str, object]
"""What a topic defines: "torch._C._cuda_getDevice" to the function, and so on."""

MISSING = object()


class Replacements:
    """What was put in place of what. Not for several threads: programs install before they start any."""

    def __init__(self) -> None:
        self._originals: dict[str, object] = {}

    def put(self, names: Mapping[str, object]) -> None:
        """Set each name, and remember what it stood for the first time."""
        for path, value in names.items():
            parent, _, name = path.rpartition(".")
            owner = _found(parent)
            if owner is not MISSING:  # a class that only later versions of torch have
                self._originals.setdefault(path, vars(owner).get(name, MISSING))
                setattr(owner, name, value)

    def put_everywhere(self, name: str, old: object, new: object) -> None:
        """Replace an object wherever a module of torch has imported it under its name."""
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("torch") and getattr(module, "__dict__", {}).get(name) is old:
                self.put({f"{module_name}.{name}": new})

    def names(self) -> list[str]:
        """Return the dotted paths, sorted."""
        return sorted(self._originals)

    def original(self, path: str) -> object:
        """Return what a name stood for; MISSING when torch had no such name."""
        return self._originals[path]


def _found(path: str) -> object:
    """Return the module or class a path leads to, or MISSING."""
    parts = path.split(".")
    known = max(length for length in range(1, len(parts) + 1) if ".".join(parts[:length]) in sys.modules)
    found: object = sys.modules[".".join(parts[:known])]
    for part in parts[known:]:
        found = getattr(found, part, MISSING)
    return found

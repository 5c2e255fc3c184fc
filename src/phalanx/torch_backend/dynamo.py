"""Keeping torch.compile out of our code: it would trace into methods that end in the native engine.

The rule has to be added to a module of Dynamo that takes over a second to import. So it is added when that module is
loaded, by whoever loads it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_RULES = "torch._dynamo.trace_rules"


def skip_own_code() -> None:
    """Make Dynamo run phalanx as it is. Calling it again does nothing."""
    if _RULES in sys.modules:
        _add_rule(sys.modules[_RULES])
    elif not any(isinstance(finder, _RulesFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RulesFinder())


def _add_rule(rules: ModuleType) -> None:
    if not getattr(rules, "_knows_phalanx", False):
        rules.add("phalanx")
        rules._knows_phalanx = True  # type: ignore[attr-defined]


class _RulesFinder(importlib.abc.MetaPathFinder):
    """Finds one module, as the others would, and adds the rule after it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _RULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _RulesLoader(spec.loader)
        return spec


class _RulesLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _add_rule(module)

    def __getattr__(self, name: str) -> object:  # inspect asks loaders for sources
        return getattr(self._loader, name)

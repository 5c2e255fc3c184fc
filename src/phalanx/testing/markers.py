"""How tests ask for ranks and virtual GPUs: with the markers of the plugin, or with a fixture.

A project that declares a marker of the same name keeps it for itself.
"""

from __future__ import annotations

from typing import Any

import pytest

_FIXTURES = "phalanx.testing.fixtures"
_DECLARED = {
    "ranks": "ranks(n, *, kind, timeout, backend, device, gpus, races): run the test on n ranks (phalanx). "
    "ranks([1, 2, 4]) makes one test for each number. kind: process (default), thread or pool; timeout: seconds "
    '(default 60); gpus: "virtual" for one virtual GPU per rank, "virtual:4" or "virtual:4:h100"; '
    "races: off, warn or raise",
    "virtual_gpus": "virtual_gpus(n=4, *, races, timeout): run the test in a separate process with n virtual GPUs "
    "(phalanx)",
}
SWITCH_OFF = "this comes from the pytest plugin of phalanx; -p no:phalanx switches it off"
MARKS_ARE_OURS = (
    "@pytest.mark.ranks and @pytest.mark.virtual_gpus belong to phalanx. If yours mean something else, declare them "
    "under 'markers' in the configuration of pytest, and phalanx leaves them alone; -p no:phalanx switches it off"
)


def declare_markers(config: pytest.Config) -> None:
    """Declare the markers that the project does not have itself."""
    for name, line in _DECLARED.items():
        if not is_projects(config, name):
            config.addinivalue_line("markers", line)


def is_projects(config: pytest.Config, name: str) -> bool:
    """Tell whether the project, or another plugin, has declared a marker of this name with a meaning of its own.

    A description that mentions phalanx is about our marker: a project may want to run without the plugin as well.
    """
    lines = config.getini("markers")
    return any(_name_of(line) == name and "phalanx" not in line.lower() for line in lines)


def projects_own(config: pytest.Config) -> list[str]:
    """Return which of our markers' names belong to the project."""
    return [name for name in _DECLARED if is_projects(config, name)]


def find_mark(item: Any, name: str) -> pytest.Mark | None:
    """Return a mark of a test, if it is ours."""
    mark: pytest.Mark | None = item.get_closest_marker(name)
    return None if mark is None or is_projects(item.config, name) else mark


def asks_for_virtual_gpus(item: Any) -> bool:
    """Tell whether a test, or a fixture of it, names our fixture `virtual_gpus`, and not another of that name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get("virtual_gpus", ()) if info is not None else ()
    return any(getattr(each.func, "__module__", "") == _FIXTURES for each in definitions[-1:])


def _name_of(line: str) -> str:
    return line.partition(":")[0].partition("(")[0].strip()

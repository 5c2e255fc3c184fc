"""How tests ask for ranks and virtual GPUs: with the markers of the plugin, or with a fixture.

A project that has a marker of the same name keeps it for itself. Code that declares a marker also uses it. A line in
the ini file may mean either marker. Tests whose marks phalanx can read then fail until the project says whose it is.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pytest

from phalanx.testing.stash_keys import INI_MARKERS

_FIXTURES = "phalanx.testing.fixtures"
_DECLARED = {
    "ranks": "ranks(n, *, kind, timeout, backend, device, gpus, races): run the test on n ranks (phalanx). "
    "ranks([1, 2, 4]) makes one test for each number. kind: process (default), thread or pool; timeout: seconds "
    '(default 60); gpus: "virtual" for one virtual GPU per rank, "virtual:4" or "virtual:4:h100"; '
    "races: off, warn or raise",
    "virtual_gpus": "virtual_gpus(n=4, *, gpu, races, timeout): run the test in a separate process with n virtual GPUs "
    "(phalanx)",
}
SWITCH_OFF = "this comes from the pytest plugin of phalanx; -p no:phalanx switches it off"
MARKS_ARE_OURS = (
    "@pytest.mark.ranks and @pytest.mark.virtual_gpus belong to phalanx. If yours mean something else, write "
    "ranks_marker = project into the configuration of pytest, and phalanx leaves them alone; -p no:phalanx switches "
    "it off"
)
OWNERS = ("phalanx", "project")
Owner: TypeAlias = Literal["phalanx", "project", "unknown"]


def note_ini_markers(config: pytest.Config) -> None:
    """Note which markers the ini file declares, before any conftest or plugin declares some."""
    config.stash[INI_MARKERS] = tuple(config.getini("markers"))


def declare_markers(config: pytest.Config) -> None:
    """Declare the markers that the project does not have itself.

    Raises:
        pytest.UsageError: The ini file names nobody to whom the markers could belong.
    """
    choice = config.getini("ranks_marker")
    if choice and choice not in OWNERS:
        raise pytest.UsageError(f"ranks_marker is {choice!r}; give one of {', '.join(OWNERS)}; {SWITCH_OFF}")
    for name, line in _DECLARED.items():
        if owner_of(config, name) == "phalanx":
            config.addinivalue_line("markers", line)


def owner_of(config: pytest.Config, name: str) -> Owner:
    """Return whose marker this is.

    A description that mentions phalanx is about our marker: a project may want to run without the plugin as well.
    """
    choice: Owner | None = config.getini("ranks_marker")
    if choice:
        return choice
    lines, of_ini_file = config.getini("markers"), config.stash.get(INI_MARKERS, ())
    others = {line for line in lines if _name_of(line) == name and "phalanx" not in line.lower()}
    if not others:
        return "phalanx"
    return "project" if any(lines.count(line) > of_ini_file.count(line) for line in others) else "unknown"


def describe_owners(config: pytest.Config) -> list[str]:
    """Return a line for each of our markers' names that does not certainly mean our marker."""
    lines = {
        "phalanx": "",
        "project": "phalanx: this project declares a marker '{}' of its own, so phalanx leaves tests with it alone",
        "unknown": "phalanx: this project lists a marker '{}', and tests that could mean phalanx's marker fail until "
        "ranks_marker says whose it is",
    }
    return [text.format(name) for name in _DECLARED if (text := lines[owner_of(config, name)])]


def find_mark(item: Any, name: str) -> pytest.Mark | None:
    """Return a mark of a test, if it is ours."""
    mark: pytest.Mark | None = item.get_closest_marker(name)
    return mark if mark is not None and owner_of(item.config, name) == "phalanx" else None


def find_unclear_marks(item: Any) -> list[pytest.Mark]:
    """Return the marks of a test that may be ours, or the project's."""
    marks = [item.get_closest_marker(name) for name in _DECLARED if owner_of(item.config, name) == "unknown"]
    return [mark for mark in marks if mark is not None]


def asks_for_virtual_gpus(item: Any) -> bool:
    """Tell whether a test, or a fixture of it, names our fixture `virtual_gpus`, and not another of that name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get("virtual_gpus", ()) if info is not None else ()
    return any(getattr(each.func, "__module__", "") == _FIXTURES for each in definitions[-1:])


def _name_of(line: str) -> str:
    return line.partition(":")[0].partition("(")[0].strip()

"""How tests ask for ranks and virtual GPUs: with the markers of the plugin, or with a fixture.

A project that declares a marker of the same name keeps it for itself. If only its ini file declares the marker, without
a word of phalanx, tests that use phalanx still run on ranks, and the project's own tests are left alone. A project that
does both must say whose the marker is: otherwise a test could pass on no ranks.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any, Literal, TypeAlias

import pytest

from phalanx.testing.stash_keys import INI_MARKERS, USERS, USES

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
        "unknown": "phalanx: this project lists a marker '{}', so tests with it run on ranks only if they use phalanx",
    }
    return [text.format(name) for name in _DECLARED if (text := lines[owner_of(config, name)])]


def find_mark(item: Any, name: str) -> pytest.Mark | None:
    """Return a mark of a test, if it is ours."""
    mark: pytest.Mark | None = item.get_closest_marker(name)
    if mark is None:
        return None
    owner = owner_of(item.config, name)
    return mark if owner == "phalanx" or (owner == "unknown" and uses_phalanx(item)) else None


def find_unclear_marks(item: Any) -> list[pytest.Mark]:
    """Return the marks of a test that uses nothing of phalanx, while other tests with the same mark do."""
    names = [name for name in _DECLARED if item.get_closest_marker(name) is not None]
    unclear = [name for name in names if owner_of(item.config, name) == "unknown" and not uses_phalanx(item)]
    return [item.get_closest_marker(name) for name in unclear if _do_others_use(item.session, name)]


def _do_others_use(session: pytest.Session, name: str) -> bool:
    found = session.config.stash.setdefault(USES, {})
    if name not in found:
        found[name] = any(find_mark(item, name) is not None for item in session.items)
    return found[name]


def uses_phalanx(item: Any) -> bool:
    """Tell whether a test uses a fixture of phalanx, or its module or a conftest has imported something of phalanx."""
    info = getattr(item, "_fixtureinfo", None)
    used = [definitions[-1] for definitions in info.name2fixturedefs.values()] if info is not None else []
    if any(getattr(each.func, "__module__", "") == _FIXTURES for each in used):
        return True
    known = item.config.stash.setdefault(USERS, {})  # one look at each module is enough
    modules = [getattr(item, "module", None), *item.config.pluginmanager.get_plugins()]
    return any(_is_user(module, known) for module in modules if isinstance(module, ModuleType))


def _is_user(module: ModuleType, known: dict[ModuleType, bool]) -> bool:
    if module not in known:
        values = list(vars(module).values())
        origins = [value.__name__ if isinstance(value, ModuleType) else _module_of(value) for value in values]
        is_plugin = _is_of_phalanx(module.__name__)
        known[module] = not is_plugin and any(map(_is_of_phalanx, origins))
    return known[module]


def _is_of_phalanx(name: str) -> bool:
    return name.partition(".")[0] == "phalanx"


def _module_of(value: object) -> str:
    if not isinstance(value, (type, FunctionType)):
        value = type(value)
    return str(value.__module__)


def asks_for_virtual_gpus(item: Any) -> bool:
    """Tell whether a test, or a fixture of it, names our fixture `virtual_gpus`, and not another of that name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get("virtual_gpus", ()) if info is not None else ()
    return any(getattr(each.func, "__module__", "") == _FIXTURES for each in definitions[-1:])


def _name_of(line: str) -> str:
    return line.partition(":")[0].partition("(")[0].strip()

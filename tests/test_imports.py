"""What import-linter can't see: imports by name and inside functions, and names that are used twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import phalanx

_FOLDER = Path(phalanx.__file__).parent

# These import parts of themselves when a public name is first used, so that importing them takes no time.
_IMPORTED_ON_USE = {"__init__.py", "testing/__init__.py", "testing/unittest/__init__.py"}
# The docstring of the package, or of the module, gives one reason for all.
_WITH_ONE_REASON = ("cli/", "doctor/", "jobs/", "torch_backend/autoload.py")
# What starts ranks imports what most ranks need, and a rank what sets up its virtual GPUs. Their package is below these
# modules and must not depend on them.
_BY_NAME_ON_PURPOSE = {"launch/zygote.py", "launch/threads.py", "launch/rank_devices.py", "patches.py"}


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(_FOLDER.rglob("*.py")):
        yield str(path.relative_to(_FOLDER)), path.read_text()


def test_no_module_of_ours_is_imported_by_its_name_or_taken_from_sys_modules() -> None:
    found = {name for name, text in _modules() if any(map(_is_import_by_name, ast.walk(ast.parse(text))))}
    assert found <= _IMPORTED_ON_USE | _BY_NAME_ON_PURPOSE


def _is_import_by_name(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[argument]):
            return not (isinstance(argument, ast.Constant) and not str(argument.value).startswith("phalanx"))
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="modules"), attr="get"), args=[argument, *_]):
            return isinstance(argument, ast.Constant) and str(argument.value).startswith("phalanx")
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name))):
            return name.startswith("phalanx")
    return False


def test_an_import_inside_a_function_says_why() -> None:
    found = {
        name
        for name, text in _modules()
        if not name.startswith(_WITH_ONE_REASON) and any(_imports_without_reason(text))
    }
    assert not found


def _imports_without_reason(text: str) -> Iterator[ast.ImportFrom]:
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in {node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}:
        above = node.lineno - 2
        while (
            lines[above].strip().startswith("from phalanx")
        ):  # one comment is enough for imports that follow each other
            above -= 1
        has_reason = lines[above].strip().startswith("#") or any(
            "#" in line for line in lines[node.lineno - 1 : node.end_lineno]
        )
        if (node.module or "").startswith("phalanx") and not has_reason:
            yield node


def test_each_class_name_is_used_once() -> None:
    """Of the classes that other modules can use: one meaning for each name."""
    modules: dict[str, list[str]] = {}
    for module, text in _modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(module)
    assert len(modules) > 200
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}

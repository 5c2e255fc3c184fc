"""What the documents say about the code: they name what there is, all of it, and their links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist

import phalanx
from phalanx import errors
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.torch_backend.process_group import PhalanxProcessGroup

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), _ROOT / "native/model/README.md"])
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]+)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _sources() -> str:
    return "\n".join(path.read_text() for path in sorted((_ROOT / "src").rglob("*.py")))


def _anchors(page: Path) -> set[str]:
    """Name the headings of a page as links do."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_the_page_of_settings_names_every_variable_and_no_other() -> None:
    of_code = set(re.findall(r'"(PHALANX_[A-Z_]+)"', _sources()))
    of_page = set(re.findall(r"PHALANX_[A-Z_]+", (_ROOT / "docs/settings.md").read_text()))
    assert of_page == of_code


def test_the_page_of_errors_names_every_error() -> None:
    text = (_ROOT / "docs/errors.md").read_text()
    own = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.PhalanxError)]
    assert len(own) > 10
    assert [one.__name__ for one in own if re.search(rf"\b{one.__name__}\b", text) is None] == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for path, anchor in _LINK.findall(_CODE.sub("", page.read_text())):
        if path.startswith(("http:", "https:", "mailto:")):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor[1:] not in _anchors(target)):
            broken.append(path + anchor)
    assert broken == []


def test_documents_name_files_that_exist() -> None:
    """Of the names in backquotes that look like files of this repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=_ROOT, capture_output=True, text=True, timeout=30, check=False)
    if listed.returncode != 0:
        pytest.skip("needs a checkout of git")
    files = ["/" + name for name in listed.stdout.splitlines()]
    missing = []
    for page in [_ROOT / "ARCHITECTURE.md", _ROOT / "CONTRIBUTING.md", *_ROOT.glob("docs/internals/*.md")]:
        for name in re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|cpp|hpp|cu|pml|pyi))`", page.read_text()):
            if not any(file.endswith("/" + name) for file in files):
                missing.append(f"{page.name}: {name}")
    assert missing == []


_DOTTED = re.compile(r"`@?((?:phalanx|group|dist)(?:\.[A-Za-z_]\w*)+)")


def _find_objects(name: str) -> list[object]:
    """Return what a dotted name in a document may mean: `group` may be phalanx's group, or torch's."""
    first, *rest = name.removeprefix("dist.group.WORLD.").split(".")
    roots: dict[str, list[object]] = {
        "phalanx": [phalanx],
        "group": [SharedMemoryGroup, PhalanxProcessGroup],
        "dist": [dist],
    }
    found = roots.get(first) or [getattr(PhalanxProcessGroup, first)]
    for number, part in enumerate(rest, 1):
        module = ".".join((first, *rest[:number]))
        if first == "phalanx" and not hasattr(found[0], part) and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
        found = [getattr(one, part) for one in found if hasattr(one, part)]
    return found


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_pages_name_functions_that_exist(page: Path) -> None:
    """Of phalanx, of a group, and of torch.distributed."""
    names = dict.fromkeys(_DOTTED.findall(page.read_text()))
    assert [name for name in names if not _find_objects(name)] == []


def test_that_test_finds_a_name_that_does_not_exist() -> None:
    assert _DOTTED.findall("`group.all_reduse(t)`") == ["group.all_reduse"]
    assert _find_objects("group.all_reduse") == []
    assert _find_objects("phalanx.testing.faults.kill") != []
